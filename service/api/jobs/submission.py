"""Turns a body into a job: validated in full, created once per Idempotency-Key."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Header, Query
from pydantic import StringConstraints
from starlette.responses import Response

from service.api.faults import semantic
from service.api.faults.collect import Findings, collect
from service.api.http.dependencies import Services
from service.api.jobs import warnings
from service.api.jobs.ignored_options import ignored
from service.api.jobs.page import answer, page_of_new, read_page
from service.api.problems.errors import InvalidSpecError
from service.api.schemas.jobs import Job, SpecWarning, SubmittedJob
from service.api.schemas.problems import Fault
from service.contract.fields import patterns
from service.contract.spec.spec import JobSpec
from service.errors import PriorityQuotaError, ProjectArchivedError, QuotaExceededError
from service.store.jobs import queries
from service.store.jobs.create_calls import Attempt
from service.store.projects import quotas
from service.store.scope import Scope
from service.store.tables.jobs import JobRow


def created(what: str) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document."""
    return {
        201: {
            "description": f"The {what}: a new one, or the one that was created with this "
            "Idempotency-Key before.",
            "headers": {"Location": {"required": True, "schema": {"type": "string"}}},
        }
    }


IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=patterns.IDEMPOTENCY_KEY,
        description="Repeated with the same body, the request returns the same job. With another "
        "body: 422; while the first request is in progress: 409.",
    ),
]

PendingFiles = Annotated[
    list[Annotated[str, StringConstraints(max_length=100)]],
    Query(
        max_length=100,
        description="File ids that count as uploaded: to check a spec before its files are. "
        "One id may be named in several places.",
        examples=[["file-0199a0b1c2d3e4f5a6b7c8d9"]],
    ),
]


Force = Annotated[
    bool,
    Query(
        description="Accept a spec that every live worker would fail at, for lack of a GPU or of a "
        "package: a warning `no_able_worker` instead of the fault.",
    ),
]


def examine(
    body: Any,
    services: Services,
    scope: Scope,
    pending_files: Collection[str] = (),
    *,
    force: bool = False,
) -> Findings:
    """Every fault of a spec; `pending_files` are ids that count as uploaded. `force`: except what
    only the live workers lack, which becomes warnings."""
    findings = collect(body)
    faults = semantic.check(
        findings, body, services.settings, services.database, scope, pending_files, force=force
    )
    return replace(findings, faults=faults)


def as_allowed(services: Services, project: str, spec: JobSpec) -> tuple[JobSpec, list[Fault]]:
    """The spec with the priority that the project may have, and why it would be refused now."""
    with services.database.read() as session:
        try:
            return quotas.as_allowed(session, project, spec), []
        except (QuotaExceededError, ProjectArchivedError) as error:
            path = "priority" if isinstance(error, PriorityQuotaError) else ""
            return spec, [Fault(path=path, code=error.code, message=error.detail)]


@dataclass(frozen=True)
class Creation:
    job_id: str
    job: JobRow | None
    """None when another request made it."""
    place: queries.Place | None
    warned: list[SpecWarning] | None
    """None when another request made it."""


def valid_spec(spec: Any, services: Services, project_id: str, *, force: bool = False) -> JobSpec:
    """Raises InvalidSpecError with every fault."""
    findings = examine(spec, services, Scope(project_id), force=force)
    if findings.faults or findings.spec is None:
        raise InvalidSpecError(findings.faults)
    return findings.spec


def create(
    services: Services,
    project_id: str,
    make_spec: Callable[[], JobSpec],
    key: str | None,
    request: Any,
    *,
    attempt: Attempt | None = None,
    cloned_from: str | None = None,
) -> Creation:
    """Create a job from the spec that `make_spec` returns, or find the one that `key`, or another
    attempt of the same call, created.

    `request` must be the same when the key is used again. `attempt` is for a request without a key.
    Raises what `make_spec` raises, and the errors of service.jobs.submissions.
    """
    digest = None
    if attempt is not None:
        earlier = services.submissions.job_of_call(project_id, attempt)
        if earlier:
            return Creation(earlier, None, None, None)
    if key is not None:
        digest = digest_of(request)
        earlier = services.submissions.earlier(project_id, key, digest)
        if earlier:
            return Creation(earlier, None, None, None)
    spec = make_spec()
    found = warnings.warnings(spec, services.settings, services.database)
    made = services.submissions.submit(
        spec,
        project_id,
        notices=warnings.notices(found),
        idempotency_key=key,
        request_sha256=digest,
        attempt=attempt,
        cloned_from=cloned_from,
    )
    return Creation(made.job_id, made.job, made.place, found if made.job is not None else None)


def submit(
    services: Services,
    project_id: str,
    spec: Any,
    key: str | None,
    request: Any,
    *,
    force: bool = False,
    cloned_from: str | None = None,
) -> Response:
    """As `create`; answers with the job's page. Raises InvalidSpecError with every fault."""
    made = create(
        services,
        project_id,
        lambda: valid_spec(spec, services, project_id, force=force),
        key,
        request,
        cloned_from=cloned_from,
    )
    scope, job_id, warned = Scope(project_id), made.job_id, made.warned
    if made.job is not None:
        page: Job = page_of_new(services.database, made.job, made.place, services.settings)
    else:
        page = read_page(services.database, scope, job_id, services.settings)
    if warned is None:
        with services.database.read() as session:
            warned = warnings.of_events(queries.notices_of_submission(session, scope, job_id))
    submitted = SubmittedJob.model_construct(**dict(page), ignored=ignored(spec), warnings=warned)
    return answer(submitted, status_code=201, headers={"Location": f"/v1/jobs/{job_id}"})


def digest_of(request: Any) -> str:
    """A hash of its meaning: white space and the order of fields do not matter."""
    # default: numbers that no field will take (service/api/http/body.py)
    text = json.dumps(request, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
