"""A claim on a preview: a lease with an epoch, and what the reconciler repairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.contract.failures import Failure, FailureCode
from service.contract.previews import (
    DEADLINE_SECONDS,
    PreviewOptions,
    PreviewResult,
    PreviewState,
)
from service.contract.spec import JobSpec
from service.contract.states import Stage
from service.store import jobs, previews, retention
from service.store.brief_leases import BriefLeases
from service.store.claims import Claim
from service.store.database import db_now
from service.store.fleet import Fleet
from service.store.models import PreviewRow

MOST_ATTEMPTS: Final = 3
_leases: Final = BriefLeases(PreviewRow)
_SWEPT_SECONDS: Final = 600.0
"""What a killed worker has left in a preview's folder is removed so much later."""


@dataclass(frozen=True)
class PreviewClaim:
    """`as_job`: what a worker would know of a job with this spec, at its first stage."""

    as_job: Claim
    options: PreviewOptions
    seconds_left: float
    """Until the deadline."""

    @property
    def id(self) -> str:
        return self.as_job.job_id

    @property
    def epoch(self) -> int:
        return self.as_job.epoch


# ---- the worker ---------------------------------------------------------------------------------


def claim(
    session: Session, preview_id: str, worker_id: str, lease_seconds: float
) -> PreviewClaim | None:
    """Claim a queued preview; None: somebody else has it, or it has ended.

    Its folder is noted as to be removed before anything is written there.
    """
    row = _leases.claim(session, preview_id, worker_id, lease_seconds)
    if row is None:
        return None
    retention.schedule_removal(session, [retention.workspace(row.id)], _SWEPT_SECONDS)
    now = jobs.clock(session)
    as_job = Claim(
        job_id=row.id,
        project_id=row.project_id,
        epoch=row.epoch,
        worker_id=worker_id,
        stage=Stage.PREPARE,
        attempt=row.epoch,
        spec=JobSpec.accepted(row.spec),
        results={},
        used_seconds=0.0,
        stage_used_seconds=0.0,
        started_at=now,
        created_at=row.created_at,
    )
    left = (row.deadline_at - now).total_seconds()
    return PreviewClaim(as_job, PreviewOptions.model_validate(row.options), left)


def renew(session: Session, claimed: PreviewClaim, lease_seconds: float) -> bool:
    """Renew the lease; False: the claim is lost."""
    return _leases.change(session, claimed, lease_until=db_now(lease_seconds))


def release(session: Session, claimed: PreviewClaim) -> bool:
    """Let another worker have it at once."""
    return _leases.change(session, claimed, **_leases.released())


def end(session: Session, claimed: PreviewClaim, ended: PreviewResult | Failure) -> bool:
    """Write the result, or why there is none; False: the claim is lost, and nothing was written."""
    failure: Failure | None
    if isinstance(ended, PreviewResult):
        failure, findings = ended.failure, ended.model_dump(mode="json", exclude={"failure"})
    else:
        failure, findings = ended, None
    is_written = _leases.change(
        session,
        claimed,
        state=PreviewState.SUCCEEDED if failure is None else PreviewState.FAILED,
        failure=None if failure is None else jobs.jsonable(failure.model_dump(mode="json")),
        result=jobs.jsonable(findings),
        ended_at=db_now(),
        lease_until=None,
    )
    if is_written:
        _send_next(session, claimed.as_job.project_id)
    return is_written


def _send_next(session: Session, project_id: str) -> None:
    """The project's next preview is urgent from now on: its message is sent again as such."""
    first = (
        select(PreviewRow.id)
        .where(PreviewRow.project_id == project_id, PreviewRow.state == PreviewState.QUEUED)
        .order_by(PreviewRow.id)
        .limit(1)
        # The reconciler may hold it, and wait for the one that ends here.
        .with_for_update(skip_locked=True)
    )
    session.execute(
        update(PreviewRow)
        .where(PreviewRow.id == first.scalar_subquery())
        .values(next_publish_at=db_now()),
        execution_options={"synchronize_session": False},
    )


def forget_folder(session: Session, claimed: PreviewClaim) -> None:
    """The preview's folder is gone."""
    retention.removed(session, retention.workspace(claimed.id))


# ---- the reconciler -----------------------------------------------------------------------------


def due(session: Session, limit: int, alive_seconds: float) -> list[jobs.Message]:
    """Messages of queued previews that are to be sent, the oldest first."""
    preview_ids = _leases.due(session, limit)
    if not preview_ids:
        return []
    fleet = Fleet.read(session.connection(), alive_seconds)
    return previews.messages(session, preview_ids, fleet)


def mark_sent(session: Session, preview_ids: Sequence[str], again_in: float) -> None:
    _leases.mark_sent(session, preview_ids, again_in)


def has_stuck(session: Session) -> bool:
    """Whether `recover` has anything to do."""
    return _leases.has_stuck(session)


def recover(session: Session) -> list[str]:
    """End those that are late, or whose workers were lost too often; queue the others whose worker
    was lost. Returns their ids."""
    is_late, is_lost = _leases.is_late, _leases.is_lost
    return [
        *_leases.fail(session, is_late & _leases.is_unclaimed, _no_worker()),
        *_leases.fail(session, is_late, too_slow()),
        *_leases.fail(session, is_lost & (PreviewRow.epoch >= MOST_ATTEMPTS), _lost_too_often()),
        *_leases.release_lost(session),
    ]


def forget(session: Session) -> int:
    """Remove the rows that have expired; how many they were."""
    return _leases.forget(session)


def too_slow() -> Failure:
    return Failure.of(
        FailureCode.TIMEOUT,
        f"The preview did not end within {DEADLINE_SECONDS:.0f} s.",
        action="Try again: what was downloaded is kept. Or ask for fewer rows. A job has more "
        "time.",
    )


def _no_worker() -> Failure:
    return Failure.of(
        FailureCode.TIMEOUT,
        f"No worker was free to make the preview within {DEADLINE_SECONDS:.0f} s.",
        action="Try again when a worker of the queue `cpu` is free (`finetune workers` shows what "
        "they do), or start one for previews alone with `finetune worker --queues preview`.",
    )


def _lost_too_often() -> Failure:
    return Failure.of(
        FailureCode.CRASH_LIMIT,
        f"{MOST_ATTEMPTS} workers in a row ended while they made the preview.",
        action="Find the reason in the workers' logs, and in the memory of their machines. Then "
        "try again.",
    )
