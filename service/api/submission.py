"""Turns a body into a job: validated in full, created once per Idempotency-Key."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Header
from starlette.responses import Response

from service.api import warnings
from service.api.dependencies import Services
from service.api.errors import InvalidSpecError
from service.api.faults import semantic
from service.api.faults.collect import Findings, collect
from service.api.ignored_options import ignored
from service.api.job_page import answer, page_of_new, read_page
from service.api.schemas.jobs import Job, SpecWarning, SubmittedJob
from service.api.schemas.problems import Fault
from service.contract import patterns
from service.contract.spec import JobSpec
from service.errors import PriorityQuotaError, ProjectArchivedError, QuotaExceededError
from service.store import queries, quotas
from service.store.scope import Scope

CREATED: dict[int | str, dict[str, Any]] = {
    201: {
        "description": "The job: a new one, or the one that was created with this "
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


def examine(
    body: Any, services: Services, scope: Scope, pending_files: Collection[str] = ()
) -> Findings:
    """Every fault of a spec; `pending_files` are ids that count as uploaded."""
    findings = collect(body)
    faults = semantic.check(
        findings, body, services.settings, services.database, scope, pending_files
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


def submit(
    services: Services,
    project_id: str,
    spec: Any,
    key: str | None,
    request: Any,
    *,
    cloned_from: str | None = None,
) -> Response:
    """Create a job from `spec`, or find the one that `key` created; answer with its page.

    `request` must be the same when the key is used again. Raises InvalidSpecError with
    every fault, and the errors of service.jobs.submissions.
    """
    scope = Scope(project_id)
    page: Job | None = None
    warned: list[SpecWarning] | None = None
    digest = job_id = None
    if key is not None:
        digest = _digest(request)
        job_id = services.submissions.earlier(project_id, key, digest)
    if not job_id:
        findings = examine(spec, services, scope)
        if findings.faults or findings.spec is None:
            raise InvalidSpecError(findings.faults)
        found = warnings.warnings(findings.spec, services.settings, services.database)
        made = services.submissions.submit(
            findings.spec,
            project_id,
            notices=warnings.notices(found),
            idempotency_key=key,
            request_sha256=digest,
            cloned_from=cloned_from,
        )
        job_id = made.job_id
        if made.job is not None:
            page = page_of_new(services.database, made.job, made.place, services.settings)
            warned = found
    page = page or read_page(services.database, scope, job_id, services.settings)
    if warned is None:
        with services.database.read() as session:
            warned = warnings.of_events(queries.notices_of_submission(session, scope, job_id))
    submitted = SubmittedJob.model_construct(**dict(page), ignored=ignored(spec), warnings=warned)
    return answer(submitted, status_code=201, headers={"Location": f"/v1/jobs/{job_id}"})


def _digest(request: Any) -> str:
    """A hash of its meaning: white space and the order of fields do not matter."""
    # default: numbers that no field will take (service/api/body.py)
    text = json.dumps(request, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
