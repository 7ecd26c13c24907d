"""A claim: a lease on a job with an epoch, from the wake-up message to the attempt's end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.contract.routing import gpus_of
from service.contract.spec import SPEC_VERSION, JobSpec
from service.contract.states import HELD, JobState, Stage
from service.store import jobs
from service.store.database import db_now
from service.store.models import AttemptRow, JobRow


@dataclass(frozen=True)
class Claim:
    """What a worker knows about the job that it has claimed."""

    job_id: str
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
    """Of those at this stage, since it was begun or the user asked for a retry."""
    started_at: datetime
    created_at: datetime
    follow_up: dict[str, Any] | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the attempt has; none: the CPU."""


def claim(
    session: Session,
    job_id: str,
    worker_id: str,
    *,
    queues: Sequence[str],
    gpus: Sequence[str],
    lease_seconds: float,
) -> Claim | None:
    """Claim the job for one attempt of the stage it waits for; None: someone else has it.

    `queues`: one of which it waits in; `gpus`: UUIDs of those that the attempt gets.
    """
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
            job_id=job_id,
            epoch=row.epoch,
            stage=row.stage,
            number=row.stage_attempt,
            worker_id=worker_id,
            started_at=row.updated_at,
        )
    )
    session.flush()
    return _claim_of(session, row, worker_id, tuple(gpus))


def _claim_of(session: Session, row: JobRow, worker_id: str, gpus: tuple[str, ...]) -> Claim:
    return Claim(
        job_id=row.id,
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


@dataclass(frozen=True)
class Waiting:
    """A job that can be claimed with this many GPUs."""

    job_id: str
    queue: str
    gpus: int
    waited_seconds: float


def first_waiting(session: Session, queues: Iterable[str]) -> list[Waiting]:
    """The first job of each queue that has one, in the order they should start."""
    order = (JobRow.priority, JobRow.queued_at, JobRow.id)
    found: list[JobRow] = []
    for queue in queues:
        query = select(JobRow).where(
            JobRow.state == JobState.QUEUED, JobRow.queue == queue, *_claimable(gpus_of(queue))
        )
        found += session.scalars(query.order_by(*order).limit(1))
    now = jobs.clock(session)
    return [
        Waiting(row.id, row.queue, gpus_of(row.queue), (now - row.queued_at).total_seconds())
        for row in sorted(found, key=lambda row: (row.priority, row.queued_at, row.id))
    ]


def _stage_used_seconds(session: Session, row: JobRow) -> float:
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
    jobs.lock(session, claimed.job_id)
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
    return jobs.lock(session, job_id, JobRow.epoch == epoch, JobRow.state.in_(HELD))
