"""Leases on rows that a worker answers within seconds: previews and predictions.

As with a job, an epoch fences every write of a claim. What a job has besides (stages, retries,
events) these have not: a row that is late fails, and one whose worker was lost is queued again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from service.contract.failures import Failure
from service.store.database import db_now
from service.store.models import PredictionRow, PreviewRow

Row = TypeVar("Row", PreviewRow, PredictionRow)

# `PreviewState` and `PredictionState` spell these alike.
_QUEUED: Final = "queued"
_RUNNING: Final = "running"
_FAILED: Final = "failed"


class Claimed(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def epoch(self) -> int: ...


@dataclass(frozen=True)
class BriefLeases(Generic[Row]):
    table: type[Row]

    # ---- the worker -----------------------------------------------------------------------------

    def claim(
        self, session: Session, row_id: str, worker_id: str, lease_seconds: float
    ) -> Row | None:
        """The queued row, which runs now; None: somebody else has it, or it has ended."""
        table = self.table
        return session.scalars(
            update(table)
            .where(table.id == row_id, table.state == _QUEUED, table.deadline_at > db_now())
            .values(
                state=_RUNNING,
                epoch=table.epoch + 1,
                worker_id=worker_id,
                lease_until=db_now(lease_seconds),
            )
            .returning(table),
            execution_options={"synchronize_session": False, "populate_existing": True},
        ).one_or_none()

    def change(self, session: Session, claimed: Claimed, **values: Any) -> bool:
        """Write to a row that is claimed; False: the claim is lost, and nothing was written."""
        table = self.table
        found = session.scalar(
            update(table)
            .where(table.id == claimed.id, table.epoch == claimed.epoch, table.state == _RUNNING)
            .values(**values)
            .returning(table.id),
            execution_options={"synchronize_session": False},
        )
        return found is not None

    @staticmethod
    def released(again_in: float = 0.0) -> dict[str, Any]:
        """Values of a row that any worker may claim, told so in `again_in` seconds."""
        return {"state": _QUEUED, "lease_until": None, "next_publish_at": db_now(again_in)}

    # ---- the reconciler -------------------------------------------------------------------------

    def due(self, session: Session, limit: int) -> Sequence[str]:
        """Queued rows whose message is to be sent, the oldest first."""
        table = self.table
        is_due = (table.state == _QUEUED) & (table.next_publish_at <= db_now())
        return session.scalars(select(table.id).where(is_due).order_by(table.id).limit(limit)).all()

    def mark_sent(self, session: Session, row_ids: Sequence[str], again_in: float) -> None:
        sent = update(self.table).where(self.table.id.in_(row_ids))
        session.execute(sent.values(next_publish_at=db_now(again_in)))

    @property
    def is_late(self) -> ColumnElement[bool]:
        """Has not ended by its deadline."""
        return self.table.state.in_((_QUEUED, _RUNNING)) & (self.table.deadline_at <= db_now())

    @property
    def is_unclaimed(self) -> ColumnElement[bool]:
        return self.table.state == _QUEUED

    @property
    def is_lost(self) -> ColumnElement[bool]:
        """Its worker does not renew the lease."""
        return (self.table.state == _RUNNING) & (self.table.lease_until <= db_now())

    def has_stuck(self, session: Session) -> bool:
        stuck = select(self.table.id).where(self.is_late | self.is_lost)
        return session.scalar(stuck.limit(1)) is not None

    def fail(self, session: Session, condition: ColumnElement[bool], failure: Failure) -> list[str]:
        """The ids of those that have failed."""
        ended = update(self.table).where(condition)
        ended = ended.values(
            state=_FAILED,
            failure=failure.model_dump(mode="json"),
            ended_at=db_now(),
            lease_until=None,
        )
        return list(session.scalars(ended.returning(self.table.id)))

    def release_lost(self, session: Session, **values: Any) -> list[str]:
        """Queue again those whose worker was lost; their ids."""
        again = update(self.table).where(self.is_lost).values(**values, **self.released())
        return list(session.scalars(again.returning(self.table.id)))

    def forget(self, session: Session) -> int:
        """Remove the rows that have expired; how many they were."""
        gone = delete(self.table).where(self.table.expires_at <= db_now())
        return len(session.scalars(gone.returning(self.table.id)).all())
