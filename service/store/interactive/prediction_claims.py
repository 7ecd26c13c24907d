"""A claim on a prediction: a lease with an epoch, and what the reconciler repairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.contract.failures import Failure, FailureCode
from service.contract.interactive import next_steps
from service.contract.interactive.predictions import (
    DEADLINE_SECONDS,
    PredictionRequest,
    PredictionResult,
    PredictionState,
)
from service.contract.routing import MessageKind, gpus_of
from service.contract.states import HELD, Stage
from service.store.database import clock, db_now
from service.store.interactive import predictions
from service.store.interactive.leases import MOST_CRASHES, BriefLeases
from service.store.jobs import claims
from service.store.scope import Scope
from service.store.tables.interactive import PredictionRow
from service.store.tables.jobs import JobRow
from service.store.tables.workers import WorkerRow

LEASES: Final = BriefLeases(
    PredictionRow,
    MessageKind.PREDICTION,
    predictions.messages,
    crashes=PredictionRow.crashes + 1,
    when_lost={"crashes": PredictionRow.crashes + 1},
    no_worker=Failure.from_code(
        FailureCode.TIMEOUT,
        f"No worker was free to answer within {DEADLINE_SECONDS:.0f} s: trainings come first.",
        action="Try again when a training has ended (`finetune workers` shows what workers do), or "
        "have the operator start a worker with `finetune worker --queues predict`, or allow "
        "answers on the CPU meanwhile (FINETUNE_PREDICTION_CPU_BYTES).",
    ),
    too_slow=Failure.from_code(
        FailureCode.TIMEOUT,
        f"The answer was not ready within {DEADLINE_SECONDS:.0f} s.",
        action="Ask for fewer tokens or rows, or run a job with `mode: predict`, which has more "
        "time.",
    ),
    lost_too_often=Failure.from_code(
        FailureCode.CRASH_LIMIT,
        f"{MOST_CRASHES} workers in a row ended while they answered.",
        action="Find the reason in the workers' logs, and in the memory of their machines. Then "
        "try again.",
    ),
    advised=next_steps.of_prediction,
)


@dataclass(frozen=True)
class PredictionClaim:
    id: str
    project_id: str
    epoch: int
    crashes: int
    """Claims before this one that ended because a process did."""
    worker_id: str
    model_key: str
    request: PredictionRequest
    seconds_left: float
    """Until the deadline."""

    @property
    def scope(self) -> Scope:
        """What it may use."""
        return Scope(self.project_id)


@dataclass(frozen=True)
class Waiting:
    """A queued prediction."""

    id: str
    project_id: str
    model_key: str
    waited_seconds: float


# ---- the worker ---------------------------------------------------------------------------------


def waiting(session: Session, limit: int) -> list[Waiting]:
    """The queued predictions of all projects, the oldest first."""
    columns = (PredictionRow.id, PredictionRow.project_id, PredictionRow.model_key)
    query = select(*columns, PredictionRow.created_at, db_now()).where(
        PredictionRow.state == PredictionState.QUEUED, PredictionRow.deadline_at > db_now()
    )
    return [
        Waiting(prediction_id, project, model_key, (now - created_at).total_seconds())
        for prediction_id, project, model_key, created_at, now in session.execute(
            query.order_by(PredictionRow.id).limit(limit)
        )
    ]


def claim(
    session: Session, prediction_id: str, worker_id: str, lease_seconds: float
) -> PredictionClaim | None:
    """Claim a queued prediction; None: somebody else has it, or it has ended."""
    row = LEASES.claim(session, prediction_id, worker_id, lease_seconds)
    if row is None:
        return None
    return PredictionClaim(
        id=row.id,
        project_id=row.project_id,
        epoch=row.epoch,
        crashes=row.crashes,
        worker_id=worker_id,
        model_key=row.model_key,
        request=PredictionRequest.model_validate(row.request),
        seconds_left=(row.deadline_at - clock(session)).total_seconds(),
    )


release = LEASES.release


def renew(
    session: Session, claimed: PredictionClaim, lease_seconds: float, texts: list[str] | None = None
) -> bool:
    """Renew the lease, and write how far the `texts` are; False: the claim is lost, perhaps because
    the user has cancelled the prediction."""
    written = {} if texts is None else {"texts": texts}
    return LEASES.renew(session, claimed, lease_seconds, **written)


def crashed(session: Session, claimed: PredictionClaim, failure: Failure) -> bool:
    """Its process has ended: another try, or the failure if there were too many."""
    if claimed.crashes + 1 >= MOST_CRASHES:
        return end(session, claimed, failure)
    return release(session, claimed, crashes=PredictionRow.crashes + 1)


def end(session: Session, claimed: PredictionClaim, ended: PredictionResult | Failure) -> bool:
    """Write the result, or why there is none; False: the claim is lost, and nothing was written."""
    if isinstance(ended, Failure):
        return LEASES.end(session, claimed, ended, None)
    return LEASES.end(session, claimed, None, ended.model_dump(mode="json"))


# ---- trainings, which come first --------------------------------------------------------------


def training_queues(session: Session, hostname: str) -> list[str]:
    """The queues of trainings that the workers of this machine serve."""
    found = session.scalars(select(WorkerRow.queues).where(WorkerRow.hostname == hostname))
    return sorted({queue for queues in found for queue in queues if gpus_of(queue)})


def job_waits(session: Session, queues: Sequence[str], *, with_gpus: bool) -> bool:
    """Whether a job in one of these queues could be claimed if there were a device for it."""
    return any(
        claims.first_of_projects(session, queue, gpus_of(queue) if with_gpus else 0)
        for queue in queues
    )


def trains_on(session: Session, hostname: str) -> bool:
    """Whether a worker of this machine runs a training."""
    here = select(WorkerRow.id).where(WorkerRow.hostname == hostname)
    training = select(JobRow.id).where(
        JobRow.state.in_(sorted(HELD)), JobRow.stage == Stage.TRAIN, JobRow.worker_id.in_(here)
    )
    return session.scalar(training.limit(1)) is not None
