"""The records of a job: events, metrics, checkpoints, its log."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.http.dependencies import DatabaseDep, JobId, SettingsDep
from service.api.http.principal import JobsRead
from service.api.jobs.log_reader import LARGEST_PART, read_part
from service.api.openapi.document import problems
from service.api.schemas.history import (
    Checkpoint,
    CheckpointPage,
    Event,
    EventPage,
    LogPart,
    MetricPage,
    MetricPoint,
)
from service.contract.stage.events import MetricKind
from service.contract.states import ENDED
from service.store.jobs import queries

router = APIRouter(
    prefix="/v1/jobs/{job_id}", tags=["jobs"], responses=problems(401, 404, 422, 503)
)

# What the columns hold: 32 bits.
After = Annotated[
    int, Query(ge=0, le=2**31 - 1, description="The last `seq` of the previous page.")
]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/events", summary="The job's history")
def list_events(
    principal: JobsRead, job_id: JobId, database: DatabaseDep, after: After = 0, limit: Limit = 100
) -> EventPage:
    """In order, numbered without gaps. Next page: `after` = the last `seq`."""
    with database.read() as session:
        queries.job_exists(session, principal.scope, job_id)
        rows, has_more = queries.events(session, principal.scope, job_id, after=after, limit=limit)
    return EventPage(data=[Event.from_row(row) for row in rows], has_more=has_more)


@router.get("/metrics", summary="The job's metrics")
def list_metrics(
    principal: JobsRead,
    job_id: JobId,
    database: DatabaseDep,
    after: After = 0,
    limit: Limit = 100,
    kind: MetricKind | None = None,
) -> MetricPage:
    """In order of arrival. `eval` at step 0 is the baseline. Not a number: `nan`, `inf`, `-inf`."""
    with database.read() as session:
        queries.job_exists(session, principal.scope, job_id)
        rows, has_more = queries.metrics(
            session, principal.scope, job_id, after=after, limit=limit, kind=kind
        )
    return MetricPage(data=[MetricPoint.from_row(row) for row in rows], has_more=has_more)


@router.get("/checkpoints", summary="The job's checkpoints")
def list_checkpoints(
    principal: JobsRead,
    job_id: JobId,
    database: DatabaseDep,
    after: Annotated[int, Query(ge=-1, le=2**31 - 1, description="Step of the last one.")] = -1,
    limit: Limit = 100,
) -> CheckpointPage:
    """Sorted by step, including those that were removed to make room."""
    with database.read() as session:
        queries.job_exists(session, principal.scope, job_id)
        rows, has_more = queries.checkpoints(
            session, principal.scope, job_id, after=after, limit=limit
        )
    return CheckpointPage(data=[Checkpoint.from_row(row) for row in rows], has_more=has_more)


@router.get("/logs", summary="The job's log")
def read_logs(
    principal: JobsRead,
    job_id: JobId,
    database: DatabaseDep,
    settings: SettingsDep,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Byte to start at.")] = 0,
    limit: Annotated[int, Query(ge=16, le=LARGEST_PART, description="Bytes at most.")] = 65536,
) -> LogPart:
    """The output of all stages, by byte offset; no character is split."""
    # The state is read first: the file then has everything written before the end.
    with database.read() as session:
        ended = queries.get_job(session, principal.scope, job_id).state in ENDED
    return read_part(settings.workspace(job_id), "job.log", offset, limit, ended=ended)
