"""A claim: a lease on a job with an epoch, from the wake-up message to the attempt's end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.contract.routing import CPU_QUEUE, gpus_of
from service.contract.spec.spec import SPEC_VERSION, JobSpec
from service.contract.states import HELD, JobState, Stage
from service.store.database import clock, db_now
from service.store.jobs import state as jobs
from service.store.projects import quotas
from service.store.scheduling import fair_queue, fair_shares
from service.store.scheduling.fair_queue import Pool, Waiting
from service.store.scope import EVERYTHING, Scope
from service.store.tables.jobs import AttemptRow, JobRow
from service.store.tables.projects import ProjectRow


@dataclass(frozen=True)
class Claim:
    """What a worker knows about the job that it has claimed."""

    job_id: str
    project_id: str
    epoch: int
    worker_id: str
    stage: Stage
    attempt: int
    """Number of this attempt among those of the stage, from 1."""
    spec: JobSpec
    results: dict[str, Any]
    used_seconds: float
    """Running time of the job's earlier attempts."""
    stage_used_seconds: float
    """Running time of those at this stage, since it was begun or the user asked for a retry."""
    started_at: datetime
    created_at: datetime
    follow_up: dict[str, Any] | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the attempt has; none: the CPU."""

    @property
    def scope(self) -> Scope:
        """What the job may use."""
        return Scope(self.project_id)


def claim(
    session: Session,
    job_id: str,
    worker_id: str,
    *,
    queues: Sequence[str],
    gpus: Sequence[str],
    lease_seconds: float,
) -> Claim | None:
    """Claim the job for one attempt of the stage it waits for; None: someone else has it, or its
    project has all the GPUs that its quota allows.

    `queues`: it waits in one of them; `gpus`: UUIDs of those that the attempt gets.
    """
    owner = fair_shares.owner_of(session, job_id, len(gpus))
    if owner is None:
        return None
    if not owner.has_share:
        fair_shares.begin(session, owner.project, len(gpus))
    take = partial(_claim, session, job_id, worker_id, queues, tuple(gpus), lease_seconds)
    if owner.max_gpus is None or not gpus:
        return take()
    with session.begin_nested() as savepoint:
        claimed = take()
        # After the job's row, as everywhere: two transactions never wait for each other.
        limit = quotas.locked(session, owner.project).max_gpus
        in_use = fair_shares.gpus_in_use(session.connection()).get(owner.project, 0)
        if limit is not None and in_use > limit:
            savepoint.rollback()
            return None
    return claimed


def _claim(
    session: Session,
    job_id: str,
    worker_id: str,
    queues: Sequence[str],
    gpus: tuple[str, ...],
    lease_seconds: float,
) -> Claim | None:
    row = jobs.move(
        session,
        job_id,
        JobState.QUEUED,
        JobState.RUNNING,
        "stage_started",
        *_claimable(len(gpus)),
        JobRow.queue.in_(queues),
        epoch=JobRow.epoch + 1,
        stage_attempt=JobRow.stage_attempt + 1,
        worker_id=worker_id,
        lease_until=db_now(lease_seconds),
        data={"worker": worker_id, "gpus": list(gpus)},
    )
    if row is None:
        return None
    session.add(
        AttemptRow(
            job_id=row.id,
            epoch=row.epoch,
            stage=row.stage,
            number=row.stage_attempt,
            worker_id=worker_id,
            gpus=len(gpus),
            started_at=row.updated_at,
        )
    )
    session.flush()
    return Claim(
        job_id=row.id,
        project_id=row.project_id,
        epoch=row.epoch,
        worker_id=worker_id,
        stage=Stage(row.stage),
        attempt=row.stage_attempt,
        spec=JobSpec.accepted(row.spec),
        results=row.results,
        used_seconds=row.used_seconds,
        stage_used_seconds=_stage_used_seconds(session, row),
        started_at=row.updated_at,
        created_at=row.created_at,
        follow_up=row.follow_up,
        gpus=gpus,
    )


def _claimable(gpus: int) -> list[ColumnElement[bool]]:
    """The condition that a queued job can be claimed by a worker with this many GPUs."""
    return [
        JobRow.not_before <= db_now(),
        JobRow.min_gpus <= gpus,
        JobRow.spec_version <= SPEC_VERSION,
    ]


def first_of_projects(session: Session, queue: str, gpus: int) -> list[str]:
    """The first job in the queue of each project, of those that this many GPUs are enough for."""
    first = (
        select(JobRow.id)
        .where(
            JobRow.project_id == ProjectRow.id,
            JobRow.state == JobState.QUEUED,
            JobRow.queue == queue,
            *_claimable(gpus),
        )
        .order_by(JobRow.priority, JobRow.queued_at, JobRow.id)
        .limit(1)
    )
    found = session.scalars(select(first.scalar_subquery()).select_from(ProjectRow))
    return [job_id for job_id in found if job_id is not None]


def next_in(session: Session, woken_by: str, queue: str) -> str:
    """Which job of a queue a worker without GPUs takes after the message of `woken_by`: that one if
    no other project has jobs in the queue, because messages come in its order."""
    firsts = first_of_projects(session, queue, gpus=0)
    if len(firsts) < 2:
        return woken_by
    ordered = in_order(session, firsts, Pool.CPU)
    return ordered[0].job_id if ordered else woken_by


def first_of_project(session: Session, project: str) -> str | None:
    """The next job of a project that waits for GPUs, if it has a quota of them."""
    query = (
        select(JobRow.id)
        .join(ProjectRow, ProjectRow.id == JobRow.project_id)
        .where(
            JobRow.project_id == project,
            JobRow.state == JobState.QUEUED,
            JobRow.queue != CPU_QUEUE,
            ProjectRow.max_gpus.is_not(None),
        )
        .order_by(JobRow.priority, JobRow.queued_at, JobRow.id)
        .limit(1)
    )
    return session.scalar(query)


def first_waiting(session: Session, queues: Iterable[str]) -> list[Waiting]:
    """The first job of each project in each queue that has one, in the order they should start;
    without those that are over their project's quota."""
    firsts = [
        job_id for queue in queues for job_id in first_of_projects(session, queue, gpus_of(queue))
    ]
    return in_order(session, firsts, Pool.GPU)


def in_order(session: Session, job_ids: Sequence[str], pool: Pool) -> list[Waiting]:
    """These waiting jobs as they should start in this pool of workers."""
    if not job_ids:
        return []
    now = clock(session)
    rows = session.scalars(select(JobRow).where(JobRow.id.in_(job_ids)))
    waiting = [
        Waiting(
            job_id=row.id,
            project=row.project_id,
            queue=row.queue,
            gpus=gpus_of(row.queue) if pool is Pool.GPU else 0,
            priority=row.priority,
            queued_at=row.queued_at,
            waited_seconds=(now - row.queued_at).total_seconds(),
        )
        for row in rows
    ]
    shares = fair_shares.read(session, pool, {job.project for job in waiting})
    return fair_queue.in_order(waiting, shares)


def _stage_used_seconds(session: Session, row: JobRow) -> float:
    if row.stage_attempt == 1:
        return 0.0
    query = (
        select(AttemptRow)
        .where(
            AttemptRow.job_id == row.id,
            AttemptRow.stage == row.stage,
            AttemptRow.ended_at.is_not(None),
        )
        .order_by(AttemptRow.epoch.desc())
        .limit(row.stage_attempt - 1)
    )
    return sum(
        (attempt.ended_at - attempt.started_at).total_seconds()
        for attempt in session.scalars(query)
        if attempt.ended_at is not None
    )


def is_committed(session: Session, claimed: Claim) -> bool:
    """Whether a claim whose COMMIT got no answer is in the database.

    The start time tells it from a claim with the same epoch by another process of this worker.
    Waits for the row: that COMMIT may still be on its way on a connection that we have lost.
    """
    jobs.lock(session, EVERYTHING, claimed.job_id)
    attempt = session.get(AttemptRow, (claimed.job_id, claimed.epoch))
    return (
        attempt is not None
        and attempt.worker_id == claimed.worker_id
        and attempt.started_at == claimed.started_at
    )


def renew(session: Session, job_id: str, epoch: int, lease_seconds: float) -> JobState | None:
    """Renew the lease; returns the state, which says what the user asked for. None: stale epoch."""
    state = session.scalar(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.epoch == epoch, JobRow.state.in_(HELD))
        .values(lease_until=db_now(lease_seconds))
        .returning(JobRow.state),
        execution_options={"synchronize_session": False},
    )
    return None if state is None else JobState(state)


def requested_state(session: Session, job_id: str, epoch: int) -> JobState | None:
    """Like `renew`, but only reads."""
    state = session.scalar(
        select(JobRow.state).where(
            JobRow.id == job_id, JobRow.epoch == epoch, JobRow.state.in_(HELD)
        )
    )
    return None if state is None else JobState(state)


def held(session: Session, job_id: str, epoch: int) -> JobRow | None:
    """The locked row, if this epoch still holds it."""
    return jobs.lock(session, EVERYTHING, job_id, JobRow.epoch == epoch, JobRow.state.in_(HELD))
