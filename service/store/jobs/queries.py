"""What the API reads about jobs and workers. Nothing here writes."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    bindparam,
    exists,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.orm import Session

from service.contract.states import HELD, JobState
from service.errors import ArtifactNotFoundError, CheckpointNotFoundError, JobNotFoundError
from service.store.database import db_now, page
from service.store.projects.quotas import LIMITS_JOBS
from service.store.scope import Scope, within
from service.store.tables.base import UtcDateTime
from service.store.tables.jobs import (
    ArtifactRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    JobRow,
    MetricRow,
)
from service.store.tables.projects import ProjectRow
from service.store.tables.workers import WorkerRow

# Statements of every poll are built once: that takes SQLAlchemy longer than to run them.
_JOB: Final = select(JobRow).where(JobRow.id == bindparam("job_id"), within(JobRow.project_id))
_QUEUED: Final = (
    JobRow.state == literal_column(f"'{JobState.QUEUED}'"),
    JobRow.queue == bindparam("queue"),
)
# Two ranges of ix_jobs_waiting, by values that Postgres knows when it plans: as one condition, or
# joined with the job's row, the whole queue is read.
_MORE_URGENT: Final = select(func.count()).where(*_QUEUED, JobRow.priority < bindparam("priority"))
_EARLIER: Final = select(func.count()).where(
    *_QUEUED,
    JobRow.priority == bindparam("priority"),
    tuple_(JobRow.queued_at, JobRow.id)
    < tuple_(bindparam("queued_at", type_=UtcDateTime()), bindparam("job_id")),
)
_NOW_AND_AHEAD: Final = select(
    db_now(), _MORE_URGENT.scalar_subquery() + _EARLIER.scalar_subquery()
)
_HAS_LIMITS: Final = exists().where(ProjectRow.id == bindparam("project_id"), LIMITS_JOBS)
_ARRIVAL: Final = select(db_now(), func.count(), _HAS_LIMITS).where(
    *_QUEUED,
    JobRow.priority <= bindparam("priority"),
)
_ATTEMPTS: Final = (
    select(AttemptRow)
    .join(JobRow, JobRow.id == AttemptRow.job_id)
    .where(AttemptRow.job_id == bindparam("job_id"), within(JobRow.project_id))
    .order_by(AttemptRow.epoch)
)
_ARTIFACTS: Final = (
    select(ArtifactRow)
    .join(JobRow, JobRow.id == ArtifactRow.job_id)
    .where(ArtifactRow.job_id == bindparam("job_id"), within(JobRow.project_id))
    .order_by(ArtifactRow.name)
)


class Place(NamedTuple):
    """Where a queued job is in its queue at the database's time `now`; 1 is next."""

    position: int
    now: datetime


class Arrival(NamedTuple):
    """What a new job meets at the database's time `now`."""

    position: int
    """Its place in its queue; 1 is next."""
    now: datetime
    has_limits: bool
    """Whether its project has limits that new jobs must keep (service/store/projects/quotas.py)."""


def job_in_queue(session: Session, scope: Scope, job_id: str) -> tuple[JobRow, Place | None]:
    """The job, and its place in its queue if it is queued. Raises JobNotFoundError."""
    row = get_job(session, scope, job_id)
    if row.state != JobState.QUEUED:
        return row, None
    place = {"queue": row.queue, "priority": row.priority, "queued_at": row.queued_at}
    given = {**place, "job_id": job_id}
    now, ahead = session.connection().execute(_NOW_AND_AHEAD, given).one()
    return row, Place(ahead + 1, now)


def arrival(session: Session, project_id: str, queue: str, priority: int) -> Arrival:
    """Of a job that comes now: its place is behind all of its priority."""
    given = {"project_id": project_id, "queue": queue, "priority": priority}
    # One statement for all and without the ORM, which takes longer than the statement.
    now, waiting, has_limits = session.connection().execute(_ARRIVAL, given).one()
    return Arrival(waiting + 1, now, has_limits)


def get_job(session: Session, scope: Scope, job_id: str) -> JobRow:
    """Raises JobNotFoundError."""
    row = session.scalars(_JOB, {"job_id": job_id, **scope.given}).one_or_none()
    if row is None:
        raise JobNotFoundError(job_id)
    return row


def job_exists(session: Session, scope: Scope, job_id: str) -> None:
    """Raises JobNotFoundError if it does not."""
    query = select(JobRow.id).where(JobRow.id == job_id, scope.filter(JobRow.project_id))
    if session.scalar(query) is None:
        raise JobNotFoundError(job_id)


def attempts(session: Session, scope: Scope, job_id: str) -> list[AttemptRow]:
    """The oldest first."""
    return list(session.scalars(_ATTEMPTS, {"job_id": job_id, **scope.given}))


# ---- what a job has written -------------------------------------------------------------------


def events(
    session: Session, scope: Scope, job_id: str, *, after: int, limit: int
) -> tuple[list[EventRow], bool]:
    """Numbered events above `after`, in order; and whether there are more."""
    statement = (
        select(EventRow)
        .where(
            EventRow.job_id == job_id, EventRow.seq > after, scope.filter_by_job(EventRow.job_id)
        )
        .order_by(EventRow.seq)
    )
    return page(session, statement, limit)


def metrics(
    session: Session, scope: Scope, job_id: str, *, after: int, limit: int, kind: str | None
) -> tuple[list[MetricRow], bool]:
    """Numbered points above `after`, in order of arrival; and whether there are more."""
    statement = (
        select(MetricRow)
        .where(
            MetricRow.job_id == job_id, MetricRow.seq > after, scope.filter_by_job(MetricRow.job_id)
        )
        .order_by(MetricRow.seq)
    )
    if kind is not None:
        statement = statement.where(MetricRow.kind == kind)
    return page(session, statement, limit)


def checkpoints(
    session: Session, scope: Scope, job_id: str, *, after: int, limit: int
) -> tuple[list[CheckpointRow], bool]:
    """Checkpoints of steps above `after`, in order, the pruned ones included."""
    statement = (
        select(CheckpointRow)
        .where(
            CheckpointRow.job_id == job_id,
            CheckpointRow.step > after,
            scope.filter_by_job(CheckpointRow.job_id),
        )
        .order_by(CheckpointRow.step)
    )
    return page(session, statement, limit)


def kept_checkpoints(
    session: Session, scope: Scope, job_id: str, *, before: int | None, limit: int
) -> tuple[list[CheckpointRow], bool]:
    """Checkpoints that were not pruned, of steps below `before`, newest first; and whether there
    are more."""
    statement = (
        select(CheckpointRow)
        .where(
            CheckpointRow.job_id == job_id,
            CheckpointRow.pruned_at.is_(None),
            scope.filter_by_job(CheckpointRow.job_id),
        )
        .order_by(CheckpointRow.step.desc())
    )
    if before is not None:
        statement = statement.where(CheckpointRow.step < before)
    return page(session, statement, limit)


def metrics_by_step(session: Session, scope: Scope, job_id: str) -> Iterator[MetricRow]:
    """All points of the training and of its evaluations, by step; a thousand at once in memory."""
    query = select(MetricRow).where(
        MetricRow.job_id == job_id,
        MetricRow.kind.in_(("train", "eval")),
        scope.filter_by_job(MetricRow.job_id),
    )
    ordered = query.order_by(MetricRow.step, MetricRow.seq)
    yield from session.scalars(ordered, execution_options={"yield_per": 1000})


def metrics_at(
    session: Session, scope: Scope, job_id: str, steps: list[int]
) -> dict[tuple[str, int], dict[str, Any]]:
    """The numbers that were logged at these steps, by kind and step."""
    query = select(MetricRow.kind, MetricRow.step, MetricRow.values).where(
        MetricRow.job_id == job_id,
        MetricRow.kind.in_(("train", "eval")),
        MetricRow.step.in_(steps),
        scope.filter_by_job(MetricRow.job_id),
    )
    return {(kind, step): values for kind, step, values in session.execute(query)}


def checkpoint(session: Session, scope: Scope, job_id: str, step: int) -> CheckpointRow:
    """One of them, pruned or not. Raises JobNotFoundError or CheckpointNotFoundError."""
    job_exists(session, scope, job_id)
    row = session.get(CheckpointRow, (job_id, step))
    if row is None:
        raise CheckpointNotFoundError(f"Job {job_id} has no checkpoint of step {step}.", step=step)
    return row


def newest_checkpoint(session: Session, scope: Scope, job_id: str) -> int | None:
    """Step of the newest one that was not pruned."""
    query = select(func.max(CheckpointRow.step)).where(
        CheckpointRow.job_id == job_id,
        CheckpointRow.pruned_at.is_(None),
        scope.filter_by_job(CheckpointRow.job_id),
    )
    return session.scalar(query)


def evaluation(session: Session, scope: Scope, job_id: str, step: int) -> dict[str, Any]:
    """The numbers of the evaluation at this step; empty when there was none."""
    query = select(MetricRow.values).where(
        MetricRow.job_id == job_id,
        MetricRow.kind == "eval",
        MetricRow.step == step,
        scope.filter_by_job(MetricRow.job_id),
    )
    return session.scalar(query) or {}


def artifacts(
    session: Session, scope: Scope, job_id: str, *, after: str | None, limit: int
) -> tuple[list[ArtifactRow], bool]:
    """Artifacts by name, beyond the name `after`."""
    statement = _ARTIFACTS.params(job_id=job_id, **scope.given)
    if after is not None:
        statement = statement.where(ArtifactRow.name > after)
    return page(session, statement, limit)


def artifacts_under(session: Session, scope: Scope, job_id: str, folder: str) -> list[ArtifactRow]:
    """Artifacts by name, those whose name starts with `folder`, which ends in a slash."""
    starts = ArtifactRow.name.startswith(folder, autoescape=True)
    return list(session.scalars(_ARTIFACTS.where(starts), {"job_id": job_id, **scope.given}))


def artifact(session: Session, scope: Scope, job_id: str, name: str) -> ArtifactRow:
    """Raises JobNotFoundError or ArtifactNotFoundError."""
    job_exists(session, scope, job_id)
    # Postgres refuses a NUL in any text, and no artifact has one in its name.
    row = None if "\x00" in name else session.get(ArtifactRow, (job_id, name))
    if row is None:
        raise ArtifactNotFoundError(f"Job {job_id} has no artifact {name[:200]!r}.")
    return row


# ---- workers and counts -----------------------------------------------------------------------


def notices_of_submission(session: Session, scope: Scope, job_id: str) -> list[EventRow]:
    """The notices that the job's history began with, before any worker had it."""
    statement = (
        select(EventRow)
        .where(
            EventRow.job_id == job_id,
            EventRow.type == "notice",
            EventRow.epoch == 0,
            scope.filter_by_job(EventRow.job_id),
        )
        .order_by(EventRow.seq)
    )
    return list(session.scalars(statement))


@dataclass(frozen=True)
class RunningJob:
    worker_id: str
    job_id: str
    stage: str
    name: str | None


def live_workers(session: Session, within_seconds: float) -> list[WorkerRow]:
    """Workers with a heartbeat within the last `seconds`, by id."""
    statement = (
        select(WorkerRow)
        .where(WorkerRow.last_seen_at > db_now(-within_seconds))
        .order_by(WorkerRow.id)
    )
    return list(session.scalars(statement))


def running_jobs(session: Session, scope: Scope) -> list[RunningJob]:
    """What workers hold now, by worker and job."""
    statement = (
        select(JobRow.worker_id, JobRow.id, JobRow.stage, JobRow.name)
        .where(JobRow.state.in_(sorted(HELD)), scope.filter(JobRow.project_id))
        .order_by(JobRow.worker_id, JobRow.id)
    )
    return [
        RunningJob(worker, job_id, stage, name)
        for worker, job_id, stage, name in session.execute(statement)
        if worker is not None
    ]
