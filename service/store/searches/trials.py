"""What the reconciler reads and writes of searches and their trials; it serves no user.

Every write belongs to one version of its search (`claim_version`): of several reconcilers that have
read the same version, one writes, and the others read again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState
from service.store.database import clock, db_now
from service.store.files import retention
from service.store.tables.jobs import JobRow, MetricRow
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow

_LIVE = (TrialState.RUNNING, TrialState.PAUSED)


@dataclass(frozen=True)
class Stored:
    """A search with all that it has done (`searches.as_history`)."""

    row: SearchRow
    trials: list[SearchTrialRow]
    """By number."""
    reports: list[SearchReportRow]
    """In order."""


class TrialJob(NamedTuple):
    """What the search needs to know of the job of a trial that is not over."""

    number: int
    job_id: str | None
    state: JobState | None
    """None: the job was deleted."""
    stage: str | None
    metric_seq: int
    failure: dict[str, Any] | None
    results: dict[str, Any]


class Evaluated(NamedTuple):
    """The metrics of one evaluation."""

    number: int
    """Of the trial."""
    seq: int
    step: int
    epoch: float | None
    at: datetime
    values: dict[str, Any]


@dataclass
class Facts:
    """What has happened outside of the search since its last version."""

    row: SearchRow
    now: datetime
    jobs: dict[int, TrialJob] = field(default_factory=dict)
    """Of the trials that are not over, by number."""
    evaluations: list[Evaluated] = field(default_factory=list)
    """That the search has not read yet, in the order in which they were recorded."""
    stopping: list[str] = field(default_factory=list)
    """Jobs of trials that are over, whose workers have not stopped yet."""
    outcome_state: JobState | None = None
    outcome_failure: dict[str, Any] | None = None


def due(session: Session, limit: int) -> list[str]:
    """Searches that are due, the longest due first."""
    query = (
        select(SearchRow.id)
        .where(SearchRow.ended_at.is_(None), SearchRow.look_at <= db_now())
        .order_by(SearchRow.look_at)
        .limit(limit)
    )
    return list(session.scalars(query))


def read(session: Session, search_id: str) -> Stored | None:
    """None: it was deleted."""
    row = session.get(SearchRow, search_id)
    if row is None:
        return None
    trials = select(SearchTrialRow).where(SearchTrialRow.search_id == search_id)
    reports = select(SearchReportRow).where(SearchReportRow.search_id == search_id)
    return Stored(
        row,
        list(session.scalars(trials.order_by(SearchTrialRow.number))),
        list(session.scalars(reports.order_by(SearchReportRow.seq))),
    )


def facts(session: Session, search_id: str) -> Facts | None:
    """None: the search was deleted."""
    row = session.get(SearchRow, search_id)
    if row is None:
        return None
    found = Facts(row, clock(session))
    found.jobs = {job.number: job for job in _jobs(session, search_id)}
    found.evaluations = _evaluations(session, search_id)
    found.stopping = _stopping(session, search_id)
    if row.outcome is not None:
        job = session.get(JobRow, row.outcome["job_id"])
        found.outcome_state = None if job is None else JobState(job.state)
        found.outcome_failure = None if job is None else job.failure
    return found


def _jobs(session: Session, search_id: str) -> Iterable[TrialJob]:
    query = (
        select(
            SearchTrialRow.number,
            SearchTrialRow.job_id,
            JobRow.state,
            JobRow.stage,
            func.coalesce(JobRow.metric_seq, 0),
            JobRow.failure,
            JobRow.results,
        )
        .join(JobRow, JobRow.id == SearchTrialRow.job_id, isouter=True)
        .where(SearchTrialRow.search_id == search_id, SearchTrialRow.state.in_(_LIVE))
        .order_by(SearchTrialRow.number)
    )
    for number, job_id, state, stage, seq, failure, results in session.execute(query):
        known = None if state is None else JobState(state)
        yield TrialJob(number, job_id, known, stage, seq, failure, results or {})


def _evaluations(session: Session, search_id: str) -> list[Evaluated]:
    query = (
        select(
            SearchTrialRow.number,
            MetricRow.seq,
            MetricRow.step,
            MetricRow.progress_epoch,
            MetricRow.at,
            MetricRow.values,
        )
        .join(
            MetricRow,
            and_(
                MetricRow.job_id == SearchTrialRow.job_id,
                MetricRow.seq > SearchTrialRow.seen_metrics,
            ),
        )
        .where(
            SearchTrialRow.search_id == search_id,
            # What a paused trial has done beyond its rung counts when it is promoted.
            SearchTrialRow.state == TrialState.RUNNING,
            MetricRow.kind == "eval",
            MetricRow.step > 0,
        )
        .order_by(MetricRow.at, SearchTrialRow.number, MetricRow.seq)
    )
    return [Evaluated(*row) for row in session.execute(query)]


def _stopping(session: Session, search_id: str) -> list[str]:
    # By the index of the jobs that have not ended: there are few, and many trials that have. One
    # that its user has retried is none of the search's any more.
    query = (
        select(JobRow.id)
        .join(SearchTrialRow, SearchTrialRow.job_id == JobRow.id)
        .where(
            JobRow.search_id == search_id,
            JobRow.ended_at.is_(None),
            JobRow.state == JobState.CANCELLING,
            SearchTrialRow.state.not_in(_LIVE),
        )
    )
    return list(session.scalars(query))


# ---- writing ------------------------------------------------------------------------------------


def claim_version(
    session: Session, search_id: str, version: int, values: Mapping[str, Any]
) -> bool:
    """Write `values` and the next version; False when another one has written meanwhile. The row is
    ours until the transaction ends."""
    statement = (
        update(SearchRow)
        .where(SearchRow.id == search_id, SearchRow.version == version)
        .values(version=version + 1, updated_at=db_now(), tracking_final=False)
        # Keep the time of the next shipping: a search that lives has many versions.
        .values(tracking_retry_at=func.coalesce(SearchRow.tracking_retry_at, db_now()), **values)
        .returning(SearchRow.id)
    )
    options = {"synchronize_session": False}
    return session.scalar(statement, execution_options=options) is not None


def postpone(session: Session, search_id: str, seconds: float, **values: Any) -> None:
    """Make the next pass later, although nothing has changed. `values`: such as `waiting`."""
    session.execute(
        update(SearchRow)
        .where(SearchRow.id == search_id)
        .values(look_at=db_now(seconds), **values),
        execution_options={"synchronize_session": False},
    )


def change_trial(session: Session, search_id: str, number: int, values: Mapping[str, Any]) -> None:
    session.execute(
        update(SearchTrialRow)
        .where(SearchTrialRow.search_id == search_id, SearchTrialRow.number == number)
        .values(**values),
        execution_options={"synchronize_session": False},
    )


# ---- what pruned trials leave -------------------------------------------------------------------


class Uncleaned(NamedTuple):
    search_id: str
    number: int
    job: retention.EndedJob | None
    """None: it was deleted, or has been pruned."""


def uncleaned(session: Session, limit: int) -> list[Uncleaned]:
    """Pruned trials whose checkpoints may go: the jobs have ended, and MLflow has all of their
    data."""
    query = (
        select(
            SearchTrialRow.search_id,
            SearchTrialRow.number,
            JobRow.id,
            JobRow.ended_at,
            JobRow.workspace_pruned_at,
        )
        .join(JobRow, JobRow.id == SearchTrialRow.job_id, isouter=True)
        .where(
            SearchTrialRow.state == TrialState.PRUNED,
            SearchTrialRow.is_cleaned.is_(False),
            or_(
                JobRow.id.is_(None),
                and_(JobRow.state.in_(sorted(ENDED)), JobRow.tracking_final.is_(True)),
            ),
        )
        .limit(limit)
    )
    return [
        Uncleaned(
            search_id,
            number,
            None
            if job_id is None or ended_at is None or pruned_at is not None
            else retention.EndedJob(job_id, ended_at),
        )
        for search_id, number, job_id, ended_at, pruned_at in session.execute(query)
    ]
