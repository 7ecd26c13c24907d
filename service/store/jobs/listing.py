"""The list of jobs: newest first, in keyset pages, as fast with 100,000 jobs as with a hundred.

Every filter has an index that yields job ids in order, so one filter alone is read off its index.
Two databases plan several filters together in different ways, SQLite without statistics: so the
rarest filter is found here, by reading a bounded number of ids off each index, and drives.
What stays slow is only the case where every filter on its own matches many thousands of jobs and
all together hardly any: that walks down the newest of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, exists, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, defer

from service.contract.states import JobState, Stage
from service.store.database import page
from service.store.scope import Scope
from service.store.tables.jobs import JobLabelRow, JobRow

_RARE: Final = 1000
"""Ids that may be read off an index to learn that a filter matches no more than this many jobs."""
_CLOCK_SLACK: Final = timedelta(minutes=10)
"""An id carries the time of the API's clock, `created_at` that of the database's."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class JobFilter:
    """All that is given must hold; of `states` any one. Times are aware."""

    states: Sequence[JobState] = ()
    task: str | None = None
    name: str | None = None
    metadata: Sequence[tuple[str, str]] = ()
    has_no_metadata: bool = False
    created_after: datetime | None = None
    created_before: datetime | None = None
    id_prefix: str | None = None
    """Lower-case; a range of the primary key."""
    search_id: str | None = None


def as_utc(moment: datetime | None) -> datetime | None:
    """A time without an offset is taken as UTC; one that UTC cannot hold, as the nearest it can."""
    if moment is None or moment.tzinfo is None:
        return moment and moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        nearest = datetime.min if moment.year == 1 else datetime.max
        return nearest.replace(tzinfo=UTC)


def list_jobs(
    session: Session,
    scope: Scope,
    wanted: JobFilter,
    *,
    after: str | None,
    limit: int,
    has_specs: bool = False,
) -> tuple[list[JobRow], bool]:
    """Up to `limit` jobs, newest first, older than the id `after`; and whether there are more.

    `has_specs`: read their specs and their results, too.
    """
    statement = _newest_first(wanted, after, has_specs=has_specs).where(
        scope.filter(JobRow.project_id), *_on_row(wanted), *_created(wanted)
    )
    if wanted.has_no_metadata:
        statement = statement.where(~exists().where(JobLabelRow.job_id == JobRow.id))
    indexes = list(_indexes(scope, wanted))
    rare = _rarest(session, indexes, wanted, after) if len(indexes) > 1 else None
    if rare is not None:
        statement = statement.where(JobRow.id.in_(rare))
    return page(session, statement, limit)


def best_metrics(
    session: Session, scope: Scope, job_ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Name, value and step of each job's best evaluation, of those that have chosen a metric."""
    trained = JobRow.results[Stage.TRAIN.value]
    names = ("metric_for_best_model", "best_metric", "best_step")
    query = select(JobRow.id, *(trained[name] for name in names)).where(
        JobRow.id.in_(job_ids), scope.filter(JobRow.project_id)
    )
    return {
        job_id: {"name": name, "value": value, "step": step}
        for job_id, name, value, step in session.execute(query)
        if name is not None and value is not None
    }


def _newest_first(wanted: JobFilter, after: str | None, *, has_specs: bool) -> Select[JobRow]:
    """All jobs of the page's range; with a label off that label's index."""
    jobs = select(JobRow)
    if not has_specs:
        jobs = jobs.options(defer(JobRow.spec), defer(JobRow.results))
    labels = list(dict.fromkeys(wanted.metadata))
    if not labels:
        return jobs.where(*_bounds(JobRow.id, wanted, after)).order_by(JobRow.id.desc())
    first, *others = labels
    jobs = jobs.join(JobLabelRow, JobLabelRow.job_id == JobRow.id).where(_is_label(*first))
    for key, value in others:
        other = aliased(JobLabelRow)
        pair = (other.key == key) & (other.value == value)
        jobs = jobs.where(exists().where(pair, other.job_id == JobRow.id))
    # The label's own column: ordered by it, its index needs no sorting.
    return jobs.where(*_bounds(JobLabelRow.job_id, wanted, after)).order_by(
        JobLabelRow.job_id.desc()
    )


def _is_label(key: str, value: str) -> ColumnElement[bool]:
    return (JobLabelRow.key == key) & (JobLabelRow.value == value)


def _on_row(wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    """The conditions that the job's own row decides; each has an index (column, id)."""
    if wanted.states:
        yield JobRow.state.in_(sorted(set(wanted.states)))
    if wanted.task is not None:
        yield JobRow.task == wanted.task
    if wanted.name is not None:
        yield JobRow.name == wanted.name
    if wanted.search_id is not None:
        yield JobRow.search_id == wanted.search_id


def _indexes(
    scope: Scope, wanted: JobFilter
) -> Iterator[tuple[InstrumentedAttribute[str], ColumnElement[bool]]]:
    """Each filter as an index that yields ids: the column of the ids, and the condition."""
    for condition in _on_row(wanted):
        yield JobRow.id, scope.filter(JobRow.project_id) & condition
    labels = dict.fromkeys(wanted.metadata)
    if labels and scope.project is not None:  # other projects may have the same labels
        yield JobRow.id, scope.filter(JobRow.project_id)
    for key, value in labels:
        yield JobLabelRow.job_id, _is_label(key, value)


def _rarest(
    session: Session,
    indexes: Sequence[tuple[InstrumentedAttribute[str], ColumnElement[bool]]],
    wanted: JobFilter,
    after: str | None,
) -> list[str] | None:
    """Every id that the rarest filter matches within the range; None if no filter is rare."""
    rarest: list[str] | None = None
    for column, condition in indexes:
        statement = select(column).where(condition, *_bounds(column, wanted, after))
        ids = list(session.scalars(statement.limit(_RARE + 1)))
        if len(ids) <= _RARE and (rarest is None or len(ids) < len(rarest)):
            rarest = ids
    return rarest


def _bounds(
    column: InstrumentedAttribute[str], wanted: JobFilter, after: str | None
) -> Iterator[ColumnElement[bool]]:
    """The page and the times as a range of ids, which every index knows."""
    if after is not None:
        yield column < after
    if wanted.created_after is not None:
        yield column > _id_at(wanted.created_after, -_CLOCK_SLACK)
    if wanted.created_before is not None:
        yield column < _id_at(wanted.created_before, _CLOCK_SLACK)
    if wanted.id_prefix is not None:
        yield column >= wanted.id_prefix
        yield column < wanted.id_prefix + "g"  # no digit of an id sorts after f


def _created(wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    """The exact times: the range of ids is a little wider."""
    if wanted.created_after is not None:
        yield JobRow.created_at > wanted.created_after
    if wanted.created_before is not None:
        yield JobRow.created_at < wanted.created_before


def _id_at(moment: datetime, slack: timedelta) -> str:
    """What sorts before every id that is made `slack` after `moment`, as far as ids reach."""
    nanoseconds = int((moment - _EPOCH + slack).total_seconds()) * 10**9
    return f"job-{min(max(nanoseconds, 0), 2**64 - 1):016x}"
