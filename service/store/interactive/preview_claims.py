"""A claim on a preview: a lease with an epoch, and what the reconciler repairs."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.contract.failures import Failure, FailureCode
from service.contract.interactive import next_steps
from service.contract.interactive.previews import (
    DEADLINE_SECONDS,
    PreviewOptions,
    PreviewResult,
    PreviewState,
)
from service.contract.routing import MessageKind
from service.contract.spec.spec import JobSpec
from service.contract.states import Stage
from service.store import removals
from service.store.database import clock, db_now
from service.store.interactive import previews
from service.store.interactive.leases import MOST_CRASHES, BriefLeases
from service.store.jobs.claims import Claim
from service.store.tables.interactive import PreviewRow

LEASES: Final = BriefLeases(
    PreviewRow,
    MessageKind.PREVIEW,
    previews.messages,
    crashes=PreviewRow.epoch.expression,
    no_worker=Failure.from_code(
        FailureCode.TIMEOUT,
        f"No worker was free to make the preview within {DEADLINE_SECONDS:.0f} s.",
        action="Try again when a worker of the queue `cpu` is free (`finetune workers` shows what "
        "they do), or start one for previews alone with `finetune worker --queues preview`.",
    ),
    too_slow=Failure.from_code(
        FailureCode.TIMEOUT,
        f"The preview did not end within {DEADLINE_SECONDS:.0f} s.",
        action="Try again: what was downloaded is kept. Or ask for fewer rows. A job has more "
        "time.",
    ),
    lost_too_often=Failure.from_code(
        FailureCode.CRASH_LIMIT,
        f"{MOST_CRASHES} workers in a row ended while they made the preview.",
        action="Find the reason in the workers' logs, and in the memory of their machines. Then "
        "try again.",
    ),
    advised=next_steps.of_preview,
)
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
    row = LEASES.claim(session, preview_id, worker_id, lease_seconds)
    if row is None:
        return None
    removals.schedule(session, [removals.workspace(row.id)], _SWEPT_SECONDS)
    now = clock(session)
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


renew, release = LEASES.renew, LEASES.release


def end(session: Session, claimed: PreviewClaim, ended: PreviewResult | Failure) -> bool:
    """Write the result, or why there is none; False: the claim is lost, and nothing was written."""
    if isinstance(ended, PreviewResult):
        findings = ended.model_dump(mode="json", exclude={"failure"})
        is_written = LEASES.end(session, claimed, ended.failure, findings)
    else:
        is_written = LEASES.end(session, claimed, ended, None)
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
    """Forget the preview's folder, which was removed."""
    removals.forget(session, removals.workspace(claimed.id))
