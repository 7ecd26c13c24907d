"""What explains the waiting of a page of jobs, in a few statements for all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from service.contract.failures import Failure
from service.contract.routing import gpus_of
from service.contract.states import JobState
from service.store.database import clock, db_now
from service.store.jobs import state as jobs
from service.store.scheduling import fair_shares
from service.store.scope import Scope
from service.store.tables.jobs import AttemptRow, JobRow
from service.store.tables.projects import ProjectRow

MAX_LACK_SECONDS: Final = 60.0
"""Between two checks of a worker whether its host has what a job waits for."""
COUNTED: Final = 1000
"""Places that are counted from the front of a queue; the jobs behind wait long anyway."""


class Places:
    """The first `COUNTED` jobs of each of `queues`, by one statement a queue."""

    def __init__(self, session: Session, queues: Iterable[str]) -> None:
        self._by_queue = {queue: _places(session, queue) for queue in queues}

    def place_of(self, job: JobRow) -> int | None:
        """The place of a job that was read as queued; None behind those that are counted. A job
        that was claimed since then was the first."""
        counted = self._by_queue[job.queue]
        return counted.get(job.id, 1 if len(counted) < COUNTED else None)


def _places(session: Session, queue: str) -> dict[str, int]:
    first = (
        select(JobRow.id)
        .where(JobRow.state == JobState.QUEUED, JobRow.queue == queue)
        .order_by(JobRow.priority, JobRow.queued_at, JobRow.id)
        .limit(COUNTED)
    )
    return {job_id: place for place, job_id in enumerate(session.scalars(first), start=1)}


@dataclass(frozen=True)
class GpuQuota:
    """Of a project, and what it has in use."""

    limit: int
    in_use: int


def gpu_quotas(connection: Connection, jobs: Iterable[JobRow]) -> dict[str, GpuQuota]:
    """Project → its quota of GPUs, of those whose jobs wait for GPUs and that have one."""
    wanted = {job.project_id for job in jobs if gpus_of(job.queue)}
    if not wanted:
        return {}
    limits = select(ProjectRow.id, ProjectRow.max_gpus).where(
        ProjectRow.id.in_(wanted), ProjectRow.max_gpus.is_not(None)
    )
    found = connection.execute(limits).all()
    in_use = fair_shares.gpus_in_use(connection) if found else {}
    return {project: GpuQuota(limit or 0, in_use.get(project, 0)) for project, limit in found}


def was_tried(job: JobRow) -> bool:
    """Whether an attempt at the stage that the job waits for came before."""
    return job.stage_attempt > 0


def last_failures(
    session: Session, scope: Scope, jobs: Sequence[JobRow]
) -> dict[str, dict[str, Any]]:
    """Job → why its last attempt failed, for those that were tried and failed."""
    tried = [job.id for job in jobs if was_tried(job)]
    if not tried:
        return {}
    # An attempt whose worker was lost has the epoch before the job's own.
    query = (
        select(AttemptRow.job_id, AttemptRow.failure)
        .join(JobRow, JobRow.id == AttemptRow.job_id)
        .where(
            JobRow.id.in_(tried),
            scope.filter(JobRow.project_id),
            AttemptRow.epoch >= JobRow.epoch - 1,
        )
        .order_by(AttemptRow.job_id, AttemptRow.epoch)
    )
    newest = {row.job_id: row.failure for row in session.execute(query)}
    return {job_id: failure for job_id, failure in newest.items() if failure is not None}


def lack(session: Session, scope: Scope, job_id: str) -> Failure | None:
    """What the host of its last attempt lacked, of a job that waits for it."""
    query = (
        select(AttemptRow.failure)
        .join(JobRow, (JobRow.id == AttemptRow.job_id) & (JobRow.epoch == AttemptRow.epoch))
        .where(
            JobRow.id == job_id,
            scope.filter(JobRow.project_id),
            JobRow.stage_attempt > 0,
            JobRow.state == JobState.QUEUED,
        )
    )
    stored = session.scalar(query)
    failure = None if stored is None else Failure.model_validate(stored)
    return failure if failure is not None and failure.is_lack else None


def postpone(session: Session, scope: Scope, job_id: str) -> None:
    """Its host still lacks what it needs: look again after the time that it has waited for that,
    within bounds. Others in its queue come first meanwhile."""
    row = jobs.lock(session, scope, job_id, JobRow.state == JobState.QUEUED)
    if row is None:
        return
    waited = (clock(session) - row.queued_at).total_seconds()
    at = db_now(min(max(waited, 1.0), MAX_LACK_SECONDS))
    later = update(JobRow).where(JobRow.id == job_id).values(not_before=at, next_publish_at=at)
    session.execute(later, execution_options={"synchronize_session": False})


def last_failure(job: JobRow, attempts: Sequence[AttemptRow]) -> dict[str, Any] | None:
    """The same of one job, from all of its attempts, the oldest first."""
    return attempts[-1].failure if attempts and was_tried(job) else None
