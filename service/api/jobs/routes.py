"""Submit, validate, list and read jobs."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import StringConstraints

from service.api.faults.redaction import shown
from service.api.http.dependencies import DatabaseDep, JobId, ParsedBody, ServicesDep, SettingsDep
from service.api.http.principal import JobsRead, JobsWrite
from service.api.jobs import submission, wait_reasons
from service.api.jobs.ignored_options import ignored
from service.api.jobs.page import answer, read_page
from service.api.jobs.submission import Force, IdempotencyKey, PendingFiles
from service.api.jobs.warnings import warnings
from service.api.openapi.document import SPEC_BODY, problems
from service.api.problems.errors import InvalidRequestError
from service.api.schemas.jobs import Job, JobList, JobSummary, SubmittedJob, Validation
from service.api.schemas.problems import Fault
from service.contract.fields import patterns
from service.contract.states import JobState
from service.store.jobs import listing

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_MOST_STATES: Final = 2 * len(JobState)
Metadata = Annotated[
    list[Annotated[str, StringConstraints(max_length=64 + 1 + 512)]],
    Query(
        max_length=16,
        description="`key:value`; jobs that match all. The key ends at the first colon.",
        examples=[["team:search"]],
    ),
]


@router.post(
    "",
    status_code=201,
    response_model=SubmittedJob,
    summary="Submit a job",
    openapi_extra=SPEC_BODY,
    responses={**submission.created("job"), **problems(400, 401, 409, 413, 415, 422, 503)},
)
def create_job(
    principal: JobsWrite,
    body: ParsedBody,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
    *,
    force: Force = False,
) -> Response:
    """Queues a fine-tuning job. An invalid spec is answered with 422 and every fault at once."""
    return submission.submit(services, principal.project, body, idempotency_key, body, force=force)


@router.post(
    "/validate",
    summary="Check a spec without creating a job",
    openapi_extra=SPEC_BODY,
    responses=problems(400, 401, 413, 415, 422, 503),
)
def validate_job(
    principal: JobsRead,
    body: ParsedBody,
    services: ServicesDep,
    pending_file: PendingFiles = [],  # noqa: B006
    *,
    force: Force = False,
) -> Validation:
    """Answers 200 with `valid: false` for a spec with faults, and for one that the project may not
    submit now: its queue is full, it is archived, or it may not ask for this priority."""
    findings = submission.examine(body, services, principal.own, pending_file, force=force)
    spec, faults = findings.spec, findings.faults
    if spec is not None and not faults:
        spec, faults = submission.as_allowed(services, principal.project, spec)
    if spec is None or faults:
        return Validation(valid=False, spec=None, errors=faults, ignored=ignored(body))
    return Validation(
        valid=True,
        spec=spec.model_dump(mode="json"),
        errors=[],
        ignored=ignored(body),
        warnings=warnings(spec, services.settings, services.database),
    )


@router.get("", summary="List jobs", responses=problems(401, 422, 503))
def list_jobs(
    principal: JobsRead,
    database: DatabaseDep,
    settings: SettingsDep,
    after: Annotated[
        str | None,
        Query(pattern=patterns.JOB_ID, description="The last id of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    state: Annotated[
        list[JobState],
        Query(max_length=_MOST_STATES, description="Jobs in any of these states."),
    ] = [],  # noqa: B006
    task: Annotated[str | None, Query(max_length=64, pattern=patterns.NO_NUL)] = None,
    name: Annotated[str | None, Query(max_length=200, pattern=patterns.NO_NUL)] = None,
    metadata: Metadata = [],  # noqa: B006
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    id_prefix: Annotated[
        str | None,
        Query(pattern=patterns.JOB_ID, description="Jobs whose ids begin with it."),
    ] = None,
    search_id: Annotated[
        str | None,
        Query(pattern=patterns.SEARCH_ID, description="Jobs that this search has made."),
    ] = None,
) -> JobList:
    """Newest first. Times are RFC 3339; without an offset they are UTC."""
    wanted = listing.JobFilter(
        states=tuple(state),
        task=task,
        name=name,
        metadata=_labels(metadata),
        created_after=listing.as_utc(created_after),
        created_before=listing.as_utc(created_before),
        id_prefix=id_prefix,
        search_id=search_id,
    )
    with database.read() as session:
        rows, has_more = listing.list_jobs(
            session, principal.scope, wanted, after=after, limit=limit
        )
        reasons = wait_reasons.of_list(session, principal.scope, rows, settings)
        best = listing.best_metrics(session, principal.scope, [row.id for row in rows])
    data = [
        JobSummary.from_row(row, settings, reasons.get(row.id), best.get(row.id)) for row in rows
    ]
    return JobList.from_items(data, has_more=has_more)


def _labels(pairs: list[str]) -> list[tuple[str, str]]:
    labels = []
    for index, pair in enumerate(pairs):
        key, colon, value = pair.partition(":")
        if not colon or "\x00" in pair:
            fault = Fault(
                path=f"query.metadata.{index}",
                code="invalid_value",
                message="must be `key:value`",
                given=shown("metadata", pair),
            )
            raise InvalidRequestError([fault])
        labels.append((key, value))
    return labels


@router.get(
    "/{job_id}",
    response_model=Job,
    summary="One job",
    responses=problems(401, 404, 422, 503),
)
def get_job(
    principal: JobsRead, job_id: JobId, database: DatabaseDep, settings: SettingsDep
) -> Response:
    """The job in full: its state, metrics, failure and result."""
    return answer(read_page(database, principal.scope, job_id, settings))
