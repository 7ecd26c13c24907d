"""Searches as users see them, and the one function that writes a state of one.

What the reconciler reads and writes of trials is in `search_trials`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, func, select, update
from sqlalchemy.orm import Session, aliased, defer

from service.contract.search.spec import SEARCH_VERSION, SearchSpec
from service.contract.search.states import TRANSITIONS, TrialState
from service.contract.states import ENDED, JobState
from service.errors import (
    IdempotencyKeyReusedError,
    SearchNotFoundError,
    TooManySearchesError,
)
from service.store.database import clock, db_now, page
from service.store.projects import quotas
from service.store.scope import Scope
from service.store.tables.base import new_id
from service.store.tables.jobs import JobRow
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow
from service.studies.history import Trial

MOST_UNFINISHED = 100
"""Of a project: each search that has not ended is work for the reconciler."""
MOST_REPORTS = 100
"""Of a trial on a page; without rungs a trial reports each evaluation, perhaps thousands."""


class SearchFilter(NamedTuple):
    """All that is given must hold; of `states` any one."""

    states: Sequence[JobState] = ()
    task: str | None = None
    name: str | None = None


class TrialAndJob(NamedTuple):
    trial: SearchTrialRow
    job_state: str | None
    """None where the job was deleted, or never made."""
    progress: dict[str, Any] | None
    last_metrics: dict[str, Any] | None


def insert(
    session: Session,
    project_id: str,
    spec: SearchSpec,
    idempotency_key: str | None = None,
    request_sha256: str | None = None,
) -> SearchRow:
    """A queued search; the reconciler makes its trials. Raises ProjectArchivedError,
    TooManySearchesError."""
    require_room(session, project_id)
    now = db_now()
    row = SearchRow(
        id=new_id("search"),
        project_id=project_id,
        name=spec.name,
        task=spec.job.task.type,
        spec=stored(spec),
        spec_version=SEARCH_VERSION,
        created_at=now,
        updated_at=now,
        look_at=now,
        state=JobState.QUEUED,
        max_trials=spec.max_trials,
        counts={},
        best=[],
        best_scores=[],
        idempotency_key=idempotency_key,
        request_sha256=request_sha256,
        tracking_retry_at=now,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def require_room(session: Session, project_id: str) -> None:
    """Raises ProjectArchivedError, and TooManySearchesError where one more is too many.

    The project's row is locked, so that of requests at the same time no more get through than may.
    """
    owner = quotas.locked_open(session, project_id)
    unfinished = select(func.count()).where(
        SearchRow.project_id == project_id, SearchRow.ended_at.is_(None)
    )
    if (session.scalar(unfinished) or 0) >= MOST_UNFINISHED:
        raise TooManySearchesError(
            f"The project {owner.name} may have {MOST_UNFINISHED} unfinished searches. Wait until "
            "one has ended, or cancel one."
        )


def stored(spec: SearchSpec) -> dict[str, Any]:
    """As JSON. The template is as it was given: what it left out may differ between trials."""
    return {
        **spec.model_dump(mode="json", exclude={"job"}),
        "job": spec.job.model_dump(mode="json", exclude_unset=True),
    }


def of_key(session: Session, project_id: str, key: str, request_sha256: str) -> str | None:
    """The search that this Idempotency-Key made. Raises IdempotencyKeyReusedError when the request
    was another."""
    query = select(SearchRow.id, SearchRow.request_sha256).where(
        SearchRow.project_id == project_id, SearchRow.idempotency_key == key
    )
    found = session.execute(query).one_or_none()
    if found is None:
        return None
    if found.request_sha256 != request_sha256:
        raise IdempotencyKeyReusedError(
            "This Idempotency-Key has been used with another request.", search_id=found.id
        )
    return str(found.id)


def get(session: Session, scope: Scope, search_id: str) -> SearchRow:
    """Raises SearchNotFoundError."""
    query = select(SearchRow).where(SearchRow.id == search_id, scope.filter(SearchRow.project_id))
    row = session.scalars(query).one_or_none()
    if row is None:
        raise SearchNotFoundError(search_id)
    return row


def require(session: Session, scope: Scope, search_id: str) -> None:
    """Raises SearchNotFoundError where there is none."""
    query = select(SearchRow.id).where(
        SearchRow.id == search_id, scope.filter(SearchRow.project_id)
    )
    if session.scalar(query) is None:
        raise SearchNotFoundError(search_id)


def lock(session: Session, scope: Scope, search_id: str) -> SearchRow:
    """The row, ours until the transaction ends; locked before any job. Raises
    SearchNotFoundError."""
    query = select(SearchRow).where(SearchRow.id == search_id, scope.filter(SearchRow.project_id))
    options = {"populate_existing": True}
    row = session.scalars(query.with_for_update(), execution_options=options).one_or_none()
    if row is None:
        raise SearchNotFoundError(search_id)
    return row


def list_searches(
    session: Session, scope: Scope, wanted: SearchFilter, *, after: str | None, limit: int
) -> tuple[list[SearchRow], bool]:
    """Up to `limit` searches, newest first, older than the id `after`; and whether there are
    more. Without their specs."""
    query = (
        select(SearchRow)
        .options(defer(SearchRow.spec))
        .where(scope.filter(SearchRow.project_id))
        .order_by(SearchRow.id.desc())
    )
    if after is not None:
        query = query.where(SearchRow.id < after)
    if wanted.states:
        query = query.where(SearchRow.state.in_(sorted(set(wanted.states))))
    if wanted.task is not None:
        query = query.where(SearchRow.task == wanted.task)
    if wanted.name is not None:
        query = query.where(SearchRow.name == wanted.name)
    return page(session, query, limit)


def trials(
    session: Session,
    scope: Scope,
    search_id: str,
    *,
    states: Sequence[TrialState] = (),
    after: int | None = None,
    limit: int = 100,
) -> tuple[list[TrialAndJob], bool]:
    """Up to `limit` trials by number, above `after`; and whether there are more. Raises
    SearchNotFoundError."""
    require(session, scope, search_id)
    query = _with_jobs(search_id).order_by(SearchTrialRow.number).limit(limit + 1)
    if after is not None:
        query = query.where(SearchTrialRow.number > after)
    if states:
        query = query.where(SearchTrialRow.state.in_(sorted(set(states))))
    rows = [TrialAndJob(*row) for row in session.execute(query)]
    return rows[:limit], len(rows) > limit


def trials_of(
    session: Session, scope: Scope, search_id: str, numbers: Sequence[int]
) -> list[TrialAndJob]:
    """These trials, by number. Raises SearchNotFoundError."""
    require(session, scope, search_id)
    query = _with_jobs(search_id).where(SearchTrialRow.number.in_(numbers))
    return [TrialAndJob(*row) for row in session.execute(query.order_by(SearchTrialRow.number))]


def _with_jobs(search_id: str) -> Any:
    return (
        select(SearchTrialRow, JobRow.state, JobRow.progress, JobRow.last_metrics)
        .join(JobRow, JobRow.id == SearchTrialRow.job_id, isouter=True)
        .where(SearchTrialRow.search_id == search_id)
    )


def reports(
    session: Session, scope: Scope, search_id: str, numbers: Sequence[int]
) -> dict[int, list[SearchReportRow]]:
    """The last MOST_REPORTS that each of these trials made, in order. Raises
    SearchNotFoundError."""
    require(session, scope, search_id)
    each = SearchReportRow
    newest = func.row_number().over(partition_by=each.number, order_by=each.seq.desc())
    ranked = (
        select(each, newest.label("newest"))
        .where(each.search_id == search_id, each.number.in_(numbers))
        .subquery()
    )
    last = aliased(each, ranked)
    query = (
        select(last).where(ranked.c.newest <= MOST_REPORTS).order_by(ranked.c.number, ranked.c.seq)
    )
    found: dict[int, list[SearchReportRow]] = {number: [] for number in numbers}
    for row in session.scalars(query):
        found[row.number].append(row)
    return found


def history(session: Session, scope: Scope, search_id: str) -> list[Trial]:
    """Every trial by number, with all that it reported. Raises SearchNotFoundError."""
    require(session, scope, search_id)
    row, report = SearchTrialRow, SearchReportRow
    columns = (row.number, row.values, row.state, row.scores, row.attrs)
    query = select(*columns).where(row.search_id == search_id).order_by(row.number)
    reported = select(report.number, report.resource, report.value)
    reported = reported.where(report.search_id == search_id).order_by(report.seq)
    return as_history(session.execute(query).all(), session.execute(reported).all())


def as_history(trials: Sequence[Any], reports: Sequence[Any]) -> list[Trial]:
    """From rows of trials, by number from 0, and of reports in their order, or the columns of these
    that `history` reads."""
    found = [
        Trial(
            number=row.number,
            values=row.values,
            state=TrialState(row.state),
            scores=None if row.scores is None else [float(score) for score in row.scores],
            attrs=row.attrs,
        )
        for row in trials
    ]
    for report in reports:
        value = math.nan if report.value is None else report.value
        found[report.number].reports[report.resource] = value
    return found


def jobs_of(session: Session, scope: Scope, search_id: str) -> Sequence[Row[str, str]]:
    """Id and state of every job that the search has made."""
    query = select(JobRow.id, JobRow.state).where(
        JobRow.search_id == search_id, scope.filter(JobRow.project_id)
    )
    return session.execute(query).all()


def move(session: Session, row: SearchRow, to: JobState, **values: Any) -> SearchRow:
    """Write a state of the locked search, and nothing else does. `values`: other columns."""
    state = JobState(row.state)
    if to not in TRANSITIONS[state]:
        raise ValueError(f"a search cannot go from {state} to {to}")
    if to in ENDED:
        values["ended_at"] = db_now()
    elif state in ENDED:
        values |= {"ended_at": None, "failure": None}
    session.execute(
        update(SearchRow)
        .where(SearchRow.id == row.id)
        .values(state=to, version=SearchRow.version + 1, updated_at=db_now(), look_at=db_now())
        .values(waiting=None, tracking_final=False, tracking_retry_at=db_now(), **values),
        execution_options={"synchronize_session": False},
    )
    session.refresh(row)
    return row


def changed(session: Session, row: SearchRow) -> None:
    """Make the search due soon: something other than its state has changed. It must be locked."""
    row.version += 1
    row.updated_at = row.look_at = clock(session)
    row.tracking_final = False
    row.tracking_retry_at = row.tracking_retry_at or row.updated_at
    session.flush()
