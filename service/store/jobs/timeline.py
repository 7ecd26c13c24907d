"""Events and metrics of a job in one order, newest first: by time, at the same time the events
above the metrics, and each kind by its own numbers."""

from collections.abc import Sequence
from datetime import datetime
from heapq import merge
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.store.scope import Scope
from service.store.tables.jobs import EventRow, MetricRow

_SHOWN: Final = ("train", "eval")
"""Kinds of metrics; those of the machine are left out."""
_HIDDEN: Final = ("artifact", "phase")
"""Types of events: one for each file and each change between training and evaluating, which would
fill the first page."""


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
    of_events, of_metrics = bounds
    wanted = (
        (EventRow, EventRow.type.not_in(_HIDDEN), of_events),
        (MetricRow, MetricRow.kind.in_(_SHOWN), of_metrics),
    )
    found: list[Sequence[Any]] = []
    for table, is_shown, bound in wanted:
        query = select(table).where(
            table.job_id == job_id, is_shown, scope.filter_by_job(table.job_id), *bound
        )
        found.append(session.scalars(query.order_by(table.seq.desc()).limit(limit + 1)).all())
    rows: list[EventRow | MetricRow] = list(
        merge(*found, key=lambda row: (row.at, isinstance(row, EventRow)), reverse=True)
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
            table.job_id == job_id, table.seq == before.seq, scope.filter_by_job(table.job_id)
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
