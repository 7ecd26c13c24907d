"""Submit, validate, list, read and cancel jobs."""

import hashlib
import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from sqlalchemy.orm import Session

from service.api.artifacts import artifact_of
from service.api.deps import DatabaseDep, DispatcherDep, JobId, JsonBody, SettingsDep
from service.api.errors import InvalidRequestError, InvalidSpecError
from service.api.faults import semantic
from service.api.faults.collect import Findings, collect
from service.api.openapi import SPEC_BODY, problems
from service.api.redact import shown
from service.api.schemas.jobs import JobList, JobPage, JobSummary, Validation
from service.api.schemas.problems import Fault
from service.contract.states import JobState
from service.jobs import commands
from service.settings import Settings
from service.store import job_list, queries
from service.store.database import Database

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

ARTIFACTS_ON_PAGE = 100
_NO_NUL = r"^[^\x00]*$"
_CREATED: dict[int | str, dict[str, Any]] = {
    201: {
        "description": "The job: a new one, or the one that this Idempotency-Key made before.",
        "headers": {"Location": {"required": True, "schema": {"type": "string"}}},
    }
}


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    openapi_extra=SPEC_BODY,
    responses={**_CREATED, **problems(400, 401, 409, 413, 415, 422, 503)},
)
def create_job(
    body: JsonBody,
    response: Response,
    settings: SettingsDep,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            pattern=r"^[\x21-\x7e]+$",
            description="Sent again with the same body it answers with the same job; with "
            "another body 422; while the first is in flight 409.",
        ),
    ] = None,
) -> JobPage:
    """Queue a fine-tuning job. A wrong spec answers 422 with every fault at once."""
    findings = _examine(body, settings, database)
    if findings.faults or findings.spec is None:
        raise InvalidSpecError(findings.faults)
    submitted = commands.submit(
        database,
        dispatcher,
        findings.spec,
        idempotency_key=idempotency_key,
        request_sha256=_digest(body),
    )
    response.headers["Location"] = f"/v1/jobs/{submitted.job_id}"
    return _page(database, submitted.job_id, settings)


@router.post(
    "/validate",
    summary="Check a spec without making a job",
    openapi_extra=SPEC_BODY,
    responses=problems(400, 401, 413, 415, 503),
)
def validate_job(body: JsonBody, settings: SettingsDep, database: DatabaseDep) -> Validation:
    """Answers 200 with `valid` either way: a spec with faults is a good question."""
    findings = _examine(body, settings, database)
    if findings.faults or findings.spec is None:
        return Validation(valid=False, spec=None, errors=findings.faults)
    return Validation(valid=True, spec=findings.spec.model_dump(mode="json"), errors=[])


def _examine(body: Any, settings: Settings, database: Database) -> Findings:
    findings = collect(body)
    semantic.check(findings, settings, database)
    return findings


def _digest(body: Any) -> str:
    """Of the body's meaning: white space and the order of fields do not matter."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@router.get("", summary="List jobs", responses=problems(401, 422, 503))
def list_jobs(
    database: DatabaseDep,
    settings: SettingsDep,
    after: Annotated[
        str | None,
        Query(pattern=r"^job-[0-9a-f]{1,36}$", description="Id of the last job seen."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    state: Annotated[list[JobState], Query(description="Any of these.")] = [],  # noqa: B006
    task: Annotated[str | None, Query(max_length=64, pattern=_NO_NUL)] = None,
    name: Annotated[str | None, Query(max_length=200, pattern=_NO_NUL)] = None,
    metadata: Annotated[
        list[str],
        Query(
            max_length=16,
            description="`key:value`, all of these; the key ends at the first colon.",
            examples=["team:search"],
        ),
    ] = [],  # noqa: B006
    created_after: datetime | None = None,
    created_before: datetime | None = None,
) -> JobList:
    """Newest first. Times are RFC 3339; without an offset they are UTC."""
    wanted = job_list.JobFilter(
        states=tuple(state),
        task=task,
        name=name,
        metadata=_labels(metadata),
        created_after=job_list.as_utc(created_after),
        created_before=job_list.as_utc(created_before),
    )
    with database.read() as session:
        rows, has_more = job_list.list_jobs(session, wanted, after=after, limit=limit)
    data = [JobSummary.of(row, settings) for row in rows]
    return JobList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


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
            detail = f"{fault.path}: {fault.message}"
            raise InvalidRequestError(detail, errors=[fault.model_dump()])
        labels.append((key, value))
    return labels


@router.get("/{job_id}", summary="One job", responses=problems(401, 404, 422, 503))
def get_job(job_id: JobId, database: DatabaseDep, settings: SettingsDep) -> JobPage:
    """Everything to show on its page: where it stands, its numbers, why it failed, its result."""
    return _page(database, job_id, settings)


@router.post(
    "/{job_id}/cancel", summary="Cancel a job", responses=problems(401, 404, 409, 422, 503)
)
def cancel_job(
    job_id: JobId, database: DatabaseDep, dispatcher: DispatcherDep, settings: SettingsDep
) -> JobPage:
    """At once if it waits; a running one stops within seconds and is `cancelling` until then.

    409 when it has ended. Asking again while it is `cancelling` changes nothing.
    """
    commands.cancel(database, dispatcher, job_id)
    return _page(database, job_id, settings)


def _page(database: Database, job_id: str, settings: Settings) -> JobPage:
    with database.read() as session:
        return _build(session, job_id, settings)


def _build(session: Session, job_id: str, settings: Settings) -> JobPage:
    job = queries.get_job(session, job_id)
    rows, _ = queries.artifacts(session, job_id, after=None, limit=ARTIFACTS_ON_PAGE)
    return JobPage.build(
        job,
        queue_position=queries.queue_position(session, job),
        attempts=queries.attempts(session, job_id),
        artifacts=[artifact_of(row) for row in rows],
        settings=settings,
    )
