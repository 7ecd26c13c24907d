"""Events and metrics of a job in one order, newest first: by time, at the same time the events
above the metrics, and each kind by its own numbers."""

from datetime import datetime
from heapq import merge
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.store.models import EventRow, MetricRow
from service.store.scope import Scope

_SHOWN: Final = ("train", "eval")
"""Kinds of metrics; those of the machine are no part of it."""
_HIDDEN: Final = ("artifact", "phase")
"""Types of events: each file and each turn from training to evaluating, which would take the place
of the numbers on the first page."""


class Place(NamedTuple):
    """Of an entry: its numbers begin at 1 for events and for metrics."""

    is_event: bool
    seq: int


def newest_first(
    session: Session, scope: Scope, job_id: str, *, before: Place | None, limit: int
) -> tuple[list[EventRow | MetricRow], bool]:
    """Up to `limit` entries older than `before`, and whether there are more. Without an entry at
    `before` there are none."""
    bounds = _bounds(session, scope, job_id, before)
    if bounds is None:
        return [], False
    events: list[EventRow | MetricRow] = list(
        session.scalars(
            select(EventRow)
            .where(
                EventRow.job_id == job_id,
                EventRow.type.not_in(_HIDDEN),
                scope.of_job(EventRow.job_id),
                *bounds[0],
            )
            .order_by(EventRow.seq.desc())
            .limit(limit + 1)
        )
    )
    metrics: list[EventRow | MetricRow] = list(
        session.scalars(
            select(MetricRow)
            .where(
                MetricRow.job_id == job_id,
                MetricRow.kind.in_(_SHOWN),
                scope.of_job(MetricRow.job_id),
                *bounds[1],
            )
            .order_by(MetricRow.seq.desc())
            .limit(limit + 1)
        )
    )
    rows: list[EventRow | MetricRow] = list(
        merge(events, metrics, key=lambda row: (row.at, isinstance(row, EventRow)), reverse=True)
    )
    return rows[:limit], len(rows) > limit


_Bounds = tuple[list[ColumnElement[bool]], list[ColumnElement[bool]]]


def _bounds(session: Session, scope: Scope, job_id: str, before: Place | None) -> _Bounds | None:
    """Conditions on the events and on the metrics; None without an entry at `before`."""
    if before is None:
        return [], []
    table = EventRow if before.is_event else MetricRow
    at = session.scalar(
        select(table.at).where(
            table.job_id == job_id, table.seq == before.seq, scope.of_job(table.job_id)
        )
    )
    if at is None:
        return None
    if before.is_event:
        last = _last_until(session, MetricRow, job_id, at, or_at_it=True)
        return [EventRow.seq < before.seq], [MetricRow.seq <= last]
    last = _last_until(session, EventRow, job_id, at, or_at_it=False)
    return [EventRow.seq <= last], [MetricRow.seq < before.seq]


def _last_until(
    session: Session,
    table: type[EventRow] | type[MetricRow],
    job_id: str,
    at: datetime,
    *,
    or_at_it: bool,
) -> int:
    """The number of the newest row that was written before `at`; 0 when there is none. By
    bisection: the rows have no index by time, but their times and their numbers rise together."""
    low = 0
    high = session.scalar(select(func.max(table.seq)).where(table.job_id == job_id)) or 0
    while low < high:
        middle = (low + high + 1) // 2
        # Numbers have gaps where a metric was replaced.
        nearest = (
            select(table.seq, table.at)
            .where(table.job_id == job_id, table.seq >= middle)
            .order_by(table.seq)
            .limit(1)
        )
        seq, written = session.execute(nearest).one()
        if written < at or (or_at_it and written == at):
            low = seq
        else:
            high = middle - 1
    return low
