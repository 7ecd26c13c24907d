"""Leases on rows that a worker answers within seconds: previews and predictions.

As with a job, an epoch fences every write of a claim. Unlike jobs they have no stages, retries or
events: a row that is late fails, and one whose worker was lost is queued again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from service.contract.failures import Failure
from service.contract.routing import Message, MessageKind
from service.store.database import db_now, jsonable
from service.store.interactive.requests import QUEUED, RUNNING, Row
from service.store.scheduling.fleet import Fleet

MOST_CRASHES: Final = 3
_FAILED: Final = "failed"


class Claimed(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def epoch(self) -> int: ...


@dataclass(frozen=True)
class BriefLeases(Generic[Row]):
    table: type[Row]
    kind: MessageKind
    messages: Callable[[Session, Sequence[str], Fleet], list[Message]]
    """That wake workers for the rows with these ids."""
    crashes: ColumnElement[int]
    """For a row whose worker was lost: how many claims a crash has ended, including this one."""
    no_worker: Failure
    too_slow: Failure
    lost_too_often: Failure
    advised: Callable[[Failure], Failure]
    """The failure with an action that can be taken here, where there is no job."""
    when_lost: Mapping[str, Any] = field(default_factory=dict)
    """Values of a row whose worker was lost."""

    # ---- the worker -----------------------------------------------------------------------------

    def claim(
        self, session: Session, row_id: str, worker_id: str, lease_seconds: float
    ) -> Row | None:
        """Claim the queued row; None: another worker has it, or it has ended."""
        table = self.table
        return session.scalars(
            update(table)
            .where(table.id == row_id, table.state == QUEUED, table.deadline_at > db_now())
            .values(
                state=RUNNING,
                epoch=table.epoch + 1,
                worker_id=worker_id,
                lease_until=db_now(lease_seconds),
            )
            .returning(table),
            execution_options={"synchronize_session": False, "populate_existing": True},
        ).one_or_none()

    def renew(
        self, session: Session, claimed: Claimed, lease_seconds: float, **written: Any
    ) -> bool:
        """Renew the lease, and write these columns; False: the claim is lost."""
        return self._change(session, claimed, lease_until=db_now(lease_seconds), **written)

    def release(
        self, session: Session, claimed: Claimed, again_in: float = 0.0, **written: Any
    ) -> bool:
        """Queue it again, at once or `again_in` seconds later; False: the claim is lost."""
        return self._change(session, claimed, **_released(again_in), **written)

    def end(self, session: Session, claimed: Claimed, failure: Failure | None, result: Any) -> bool:
        """Write the result, or why there is none; False: the claim is lost, and nothing was
        written."""
        advised = None if failure is None else self.advised(failure).model_dump(mode="json")
        return self._change(
            session,
            claimed,
            state="succeeded" if failure is None else _FAILED,
            failure=jsonable(advised),
            result=jsonable(result),
            ended_at=db_now(),
            lease_until=None,
        )

    def _change(self, session: Session, claimed: Claimed, **values: Any) -> bool:
        """Write to a row that is claimed; False: the claim is lost, and nothing was written."""
        table = self.table
        found = session.scalar(
            update(table)
            .where(table.id == claimed.id, table.epoch == claimed.epoch, table.state == RUNNING)
            .values(**values)
            .returning(table.id),
            execution_options={"synchronize_session": False},
        )
        return found is not None

    # ---- the reconciler -------------------------------------------------------------------------

    def due(self, session: Session, limit: int, alive_seconds: float) -> list[Message]:
        """Messages of queued rows that are to be sent, the oldest first."""
        table = self.table
        is_due = (table.state == QUEUED) & (table.next_publish_at <= db_now())
        ids = session.scalars(select(table.id).where(is_due).order_by(table.id).limit(limit)).all()
        if not ids:
            return []
        return self.messages(session, ids, Fleet.read(session.connection(), alive_seconds))

    def mark_sent(self, session: Session, row_ids: Sequence[str], again_in: float) -> None:
        sent = update(self.table).where(self.table.id.in_(row_ids))
        session.execute(sent.values(next_publish_at=db_now(again_in)))

    @property
    def _is_late(self) -> ColumnElement[bool]:
        """Has not ended by its deadline."""
        return self.table.state.in_((QUEUED, RUNNING)) & (self.table.deadline_at <= db_now())

    @property
    def _is_lost(self) -> ColumnElement[bool]:
        """Its worker does not renew the lease."""
        return (self.table.state == RUNNING) & (self.table.lease_until <= db_now())

    def has_stuck(self, session: Session) -> bool:
        """Whether `recover` has anything to do."""
        stuck = select(self.table.id).where(self._is_late | self._is_lost)
        return session.scalar(stuck.limit(1)) is not None

    def recover(self, session: Session) -> list[str]:
        """End those that are late, or whose workers were lost too often; queue the others whose
        worker was lost. Returns their ids."""
        is_unclaimed = self._is_late & (self.table.state == QUEUED)
        has_crashed = self._is_lost & (self.crashes >= MOST_CRASHES)
        again = update(self.table).where(self._is_lost).values(**_released(), **self.when_lost)
        found = self._fail(session, is_unclaimed, self.no_worker)
        found += self._fail(session, self._is_late, self.too_slow)
        found += self._fail(session, has_crashed, self.lost_too_often)
        return found + list(session.scalars(again.returning(self.table.id)))

    def _fail(
        self, session: Session, condition: ColumnElement[bool], failure: Failure
    ) -> list[str]:
        """The ids of those that have failed."""
        ended = update(self.table).where(condition)
        ended = ended.values(
            state=_FAILED,
            failure=failure.model_dump(mode="json"),
            ended_at=db_now(),
            lease_until=None,
        )
        return list(session.scalars(ended.returning(self.table.id)))

    def forget(self, session: Session) -> int:
        """Remove the rows that have expired; how many they were."""
        statement = delete(self.table).where(self.table.expires_at <= db_now())
        return len(session.scalars(statement.returning(self.table.id)).all())


def _released(again_in: float = 0.0) -> dict[str, Any]:
    """Values of a row that any worker may claim; a message says so in `again_in` seconds."""
    return {"state": QUEUED, "lease_until": None, "next_publish_at": db_now(again_in)}
