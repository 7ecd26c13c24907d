"""What the feed of live streams reads: for all watched jobs together."""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from service.store.scope import Scope
from service.store.tables.jobs import EventRow, JobRow


class Head(NamedTuple):
    """How far a job is: what a watcher is shown besides its events."""

    project_id: str
    state: str
    stage: str
    phase: str | None
    progress: dict[str, Any] | None
    last_metrics: dict[str, Any]
    event_seq: int


def heads(session: Session, scope: Scope, job_ids: Collection[str]) -> dict[str, Head]:
    """Those of the jobs that exist, in one statement."""
    columns = [getattr(JobRow, name) for name in Head._fields]
    query = select(JobRow.id, *columns).where(
        JobRow.id.in_(sorted(job_ids)), scope.filter(JobRow.project_id)
    )
    return {job_id: Head(*rest) for job_id, *rest in session.execute(query)}


def events(session: Session, scope: Scope, places: Collection[tuple[str, int]]) -> list[EventRow]:
    """The events of these jobs and numbers, in order, in one statement."""
    query = (
        select(EventRow)
        .where(
            tuple_(EventRow.job_id, EventRow.seq).in_(sorted(places)),
            scope.filter_by_job(EventRow.job_id),
        )
        .order_by(EventRow.job_id, EventRow.seq)
    )
    return list(session.scalars(query))
