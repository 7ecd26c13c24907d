"""What the API reads about jobs and workers. Nothing here writes."""

from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select, and_, func, or_, select, tuple_
from sqlalchemy.orm import Session

from service.contract.states import HELD, JobState
from service.errors import ArtifactNotFoundError, JobNotFoundError
from service.store.database import db_now
from service.store.models import (
    ArtifactRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    JobRow,
    MetricRow,
    WorkerRow,
)

_Row = TypeVar("_Row")


def get_job(session: Session, job_id: str) -> JobRow:
    """Raises JobNotFoundError."""
    row = session.get(JobRow, job_id)
    if row is None:
        raise JobNotFoundError(f"There is no job {job_id[:100]!r}.")
    return row


def job_exists(session: Session, job_id: str) -> None:
    """Raises JobNotFoundError if it does not."""
    if session.scalar(select(JobRow.id).where(JobRow.id == job_id)) is None:
        raise JobNotFoundError(f"There is no job {job_id[:100]!r}.")


def queue_position(session: Session, job: JobRow) -> int | None:
    """1 for the job that is next in its queue; None for one that does not wait."""
    if job.state != JobState.QUEUED:
        return None
    ahead = select(func.count()).where(
        JobRow.state == JobState.QUEUED.value,
        JobRow.queue == job.queue,
        or_(
            JobRow.priority < job.priority,
            and_(
                JobRow.priority == job.priority,
                tuple_(JobRow.queued_at, JobRow.id) < tuple_(job.queued_at, job.id),
            ),
        ),
    )
    return session.scalars(ahead).one() + 1


def attempts(session: Session, job_id: str) -> list[AttemptRow]:
    """The oldest first."""
    statement = select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.epoch)
    return list(session.scalars(statement))


# ---- what a job has written -------------------------------------------------------------------


def events(session: Session, job_id: str, *, after: int, limit: int) -> tuple[list[EventRow], bool]:
    """Numbered events above `after`, in order; and whether there are more."""
    statement = (
        select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.seq > after)
        .order_by(EventRow.seq)
    )
    return _page(session, statement, limit)


def metrics(
    session: Session, job_id: str, *, after: int, limit: int, kind: str | None
) -> tuple[list[MetricRow], bool]:
    """Numbered points above `after`, in order of arrival; and whether there are more."""
    statement = (
        select(MetricRow)
        .where(MetricRow.job_id == job_id, MetricRow.seq > after)
        .order_by(MetricRow.seq)
    )
    if kind is not None:
        statement = statement.where(MetricRow.kind == kind)
    return _page(session, statement, limit)


def checkpoints(
    session: Session, job_id: str, *, after: int, limit: int
) -> tuple[list[CheckpointRow], bool]:
    """Checkpoints of steps above `after`, in order, the pruned ones included."""
    statement = (
        select(CheckpointRow)
        .where(CheckpointRow.job_id == job_id, CheckpointRow.step > after)
        .order_by(CheckpointRow.step)
    )
    return _page(session, statement, limit)


def artifacts(
    session: Session, job_id: str, *, after: str | None, limit: int
) -> tuple[list[ArtifactRow], bool]:
    """Artifacts by name, beyond the name `after`."""
    statement = select(ArtifactRow).where(ArtifactRow.job_id == job_id).order_by(ArtifactRow.name)
    if after is not None:
        statement = statement.where(ArtifactRow.name > after)
    return _page(session, statement, limit)


def artifact(session: Session, job_id: str, name: str) -> ArtifactRow:
    """Raises JobNotFoundError or ArtifactNotFoundError."""
    job_exists(session, job_id)
    # Postgres refuses a NUL in any text, and no artifact has one in its name.
    row = None if "\x00" in name else session.get(ArtifactRow, (job_id, name))
    if row is None:
        raise ArtifactNotFoundError(f"Job {job_id} has no artifact {name[:200]!r}.")
    return row


def _page(session: Session, statement: Select[_Row], limit: int) -> tuple[list[_Row], bool]:
    rows = list(session.scalars(statement.limit(limit + 1)))
    return rows[:limit], len(rows) > limit


# ---- workers and counts -----------------------------------------------------------------------


@dataclass(frozen=True)
class RunningJob:
    worker_id: str
    job_id: str
    stage: str
    name: str | None


def live_workers(session: Session, within_seconds: float) -> list[WorkerRow]:
    """Workers that were heard of in the last so many seconds, by id."""
    statement = (
        select(WorkerRow)
        .where(WorkerRow.last_seen_at > db_now(-within_seconds))
        .order_by(WorkerRow.id)
    )
    return list(session.scalars(statement))


def running_jobs(session: Session) -> list[RunningJob]:
    """What workers hold now, by worker and job."""
    statement = (
        select(JobRow.worker_id, JobRow.id, JobRow.stage, JobRow.name)
        .where(JobRow.state.in_(sorted(HELD)))
        .order_by(JobRow.worker_id, JobRow.id)
    )
    return [
        RunningJob(worker, job_id, stage, name)
        for worker, job_id, stage, name in session.execute(statement)
        if worker is not None
    ]


def count_by_state(session: Session) -> dict[str, int]:
    statement = select(JobRow.state, func.count()).group_by(JobRow.state)
    return _counts(session, statement)


def queue_depths(session: Session) -> dict[str, int]:
    """Queue → jobs that wait in it."""
    statement = (
        select(JobRow.queue, func.count())
        .where(JobRow.state == JobState.QUEUED.value)
        .group_by(JobRow.queue)
    )
    return _counts(session, statement)


def _counts(session: Session, statement: Select[Any, int]) -> dict[str, int]:
    return {str(key): count for key, count in session.execute(statement)}
