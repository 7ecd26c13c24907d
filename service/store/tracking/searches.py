"""How much of a search MLflow has: its run's ids, the version that was shipped, and the end.

Nothing here raises the search's `version`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import or_, select, text, update
from sqlalchemy.orm import Session

from service.contract.states import JobState
from service.store.database import db_now
from service.store.tables.projects import ProjectRow
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow
from service.store.tracking.jobs import finish_if

LIVE_SECONDS: Final = 30.0
"""Between two passes over a search that has not ended."""
_LIVE_RESEND_SECONDS: Final = 600.0
"""All workers may be busy with its trials for hours: meanwhile few messages should pile up."""
_MOST_BEST: Final = 20


class BestTrial(NamedTuple):
    number: int
    job_id: str | None
    values: dict[str, Any]
    scores: list[Any] | None


@dataclass(frozen=True)
class TrackedSearch:
    """A search's row as the shipping needs it, read at one moment."""

    id: str
    project: str
    """The name in MLflow of the project that owns it."""
    spec: dict[str, Any]
    spec_version: int
    state: JobState
    version: int
    tracked_version: int
    created_at: datetime
    ended_at: datetime | None
    max_trials: int
    made: int
    counts: dict[str, Any]
    best: list[BestTrial]
    failure: dict[str, Any] | None
    outcome: dict[str, Any] | None
    run_id: str | None
    final: bool
    seconds_since_end: float
    """By the database's clock; 0 while the search lives."""


class EndedTrial(NamedTuple):
    number: int
    end_number: int
    scores: list[Any] | None
    ended_at: datetime


def load(session: Session, search_id: str) -> TrackedSearch | None:
    found = session.execute(
        select(SearchRow, db_now().label("now"), ProjectRow.mlflow_name)
        .join(ProjectRow, ProjectRow.id == SearchRow.project_id)
        .where(SearchRow.id == search_id)
    ).one_or_none()
    if found is None:
        return None
    row, now, project = found
    return TrackedSearch(
        id=row.id,
        project=project,
        spec=row.spec,
        spec_version=row.spec_version,
        state=JobState(row.state),
        version=row.version,
        tracked_version=row.tracked_version,
        created_at=row.created_at,
        ended_at=row.ended_at,
        max_trials=row.max_trials,
        made=row.made,
        counts=row.counts,
        best=_best(session, search_id, row.best[:_MOST_BEST]),
        failure=row.failure,
        outcome=row.outcome,
        run_id=row.mlflow_run_id,
        final=row.tracking_final,
        seconds_since_end=(now - row.ended_at).total_seconds() if row.ended_at else 0.0,
    )


def _best(session: Session, search_id: str, numbers: Sequence[int]) -> list[BestTrial]:
    """In the order of `numbers`."""
    query = select(
        SearchTrialRow.number, SearchTrialRow.job_id, SearchTrialRow.values, SearchTrialRow.scores
    ).where(SearchTrialRow.search_id == search_id, SearchTrialRow.number.in_(numbers))
    found = {row.number: BestTrial(*row) for row in session.execute(query)}
    return [found[number] for number in numbers if number in found]


def ended_after(session: Session, search_id: str, end_number: int, limit: int) -> list[EndedTrial]:
    """Trials in the order of their ends, the first one after `end_number`."""
    query = (
        select(
            SearchTrialRow.number,
            SearchTrialRow.end_number,
            SearchTrialRow.scores,
            SearchTrialRow.ended_at,
        )
        .where(SearchTrialRow.search_id == search_id, SearchTrialRow.end_number > end_number)
        .order_by(SearchTrialRow.end_number)
        .limit(limit)
    )
    return [EndedTrial(*row) for row in session.execute(query)]


def trials_after(session: Session, search_id: str, number: int, limit: int) -> list[SearchTrialRow]:
    """Trials by number, the first one after `number`."""
    query = (
        select(SearchTrialRow)
        .where(SearchTrialRow.search_id == search_id, SearchTrialRow.number > number)
        .order_by(SearchTrialRow.number)
        .limit(limit)
    )
    return list(session.scalars(query))


def reports_of(
    session: Session, search_id: str, first: int, last: int
) -> dict[int, dict[int, float | None]]:
    """Trial → resource → value, of the trials from `first` to `last`; each in order."""
    query = (
        select(SearchReportRow.number, SearchReportRow.resource, SearchReportRow.value)
        .where(SearchReportRow.search_id == search_id, SearchReportRow.number.between(first, last))
        .order_by(SearchReportRow.seq)
    )
    found: dict[int, dict[int, float | None]] = {}
    for number, resource, value in session.execute(query):
        found.setdefault(number, {})[resource] = value
    return found


def advance(session: Session, search_id: str, version: int) -> None:
    """Note that all of this version has arrived. Later versions are shipped after a while, or at
    the end."""
    session.execute(
        update(SearchRow)
        .where(SearchRow.id == search_id, SearchRow.tracked_version < version)
        .values(tracked_version=version)
    )
    session.execute(
        update(SearchRow)
        .where(SearchRow.id == search_id, SearchRow.ended_at.is_(None))
        .values(tracking_retry_at=db_now(LIVE_SECONDS))
    )


def finish(session: Session, search_id: str, version: int) -> bool:
    """Nothing is left to ship; False, and nothing written, if the search has changed since."""
    unchanged = (SearchRow.version == version, SearchRow.ended_at.is_not(None))
    return finish_if(session, SearchRow, search_id, *unchanged, tracked_version=version)


def untracked(session: Session, limit: int) -> list[str]:
    """Searches with unsent data whose retry time has passed."""
    query = (
        select(SearchRow.id)
        .where(
            # In the words of ix_searches_untracked, or SQLite reads every search instead.
            text("tracking_final = false"),
            SearchRow.tracking_retry_at <= db_now(),
            or_(SearchRow.ended_at.is_not(None), SearchRow.tracked_version < SearchRow.version),
        )
        .order_by(SearchRow.tracking_retry_at)
        .limit(limit)
    )
    return list(session.scalars(query))


def postpone(session: Session, search_ids: Collection[str], seconds: float) -> None:
    """A message has been sent: send another one only if that is lost, `seconds` later for searches
    that have ended."""
    query = update(SearchRow).where(
        SearchRow.id.in_(search_ids),
        SearchRow.tracking_final.is_(False),
        SearchRow.tracking_retry_at <= db_now(),  # or a worker has shipped it already
    )
    options = {"synchronize_session": False}
    live, ended = SearchRow.ended_at.is_(None), SearchRow.ended_at.is_not(None)
    later = db_now(max(seconds, _LIVE_RESEND_SECONDS))
    session.execute(query.where(live).values(tracking_retry_at=later), execution_options=options)
    due = db_now(seconds)
    session.execute(query.where(ended).values(tracking_retry_at=due), execution_options=options)
