"""Whether searches kept their promises: each function returns a sentence for each broken one."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from service.contract.failures import FailureCode
from service.contract.fields.section import Acceptance
from service.contract.search import resources
from service.contract.search.pruners import AshaPruner, HyperbandPruner
from service.contract.search.spec import SearchSpec
from service.contract.search.states import OVER, TrialState
from service.contract.spec.spec import JobSpec
from service.contract.states import ENDED, JobState, Stage
from service.store.database import Database
from service.store.tables.jobs import JobRow
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow
from service.studies.halving import Halving
from service.studies.history import Trial
from tests.support.stages import chained

Report = tuple[int, int, int, float | None, str]
"""Trial, rung, step, value, decision."""


@dataclass(frozen=True)
class SearchRecord:
    """A search as the tables have it."""

    row: SearchRow
    trials: list[SearchTrialRow]
    reports: list[SearchReportRow]
    """In order."""
    jobs: dict[str, JobRow]

    @property
    def spec(self) -> SearchSpec:
        return SearchSpec.model_validate(self.row.spec, context=Acceptance())


def read(database_url: str, search_ids: Sequence[str]) -> dict[str, SearchRecord]:
    database = Database(database_url)
    try:
        return {search_id: _recorded(database, search_id) for search_id in search_ids}
    finally:
        database.dispose()


def _recorded(database: Database, search_id: str) -> SearchRecord:
    trial, report, job = SearchTrialRow, SearchReportRow, JobRow
    with database.read() as session:
        query = select(SearchRow).where(SearchRow.id == search_id)
        row = session.scalars(query).one()
        trials = select(trial).where(trial.search_id == search_id).order_by(trial.number)
        reports = select(report).where(report.search_id == search_id).order_by(report.seq)
        jobs = session.scalars(select(job).where(job.search_id == search_id))
        return SearchRecord(
            row,
            list(session.scalars(trials)),
            list(session.scalars(reports)),
            {each.id: each for each in jobs},
        )


# ---- as undisturbed ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """All of a search that must not depend on when its processes were killed."""

    state: str
    trials: list[tuple[Any, ...]]
    """Number, origin, values, state, scores, step of the scores, sha256 of the weights."""
    reports: list[Report]
    best: list[Any]
    counts: dict[str, Any]


def outcome(found: SearchRecord) -> Outcome:
    trials = [
        (*(each.number, each.origin, each.values, each.state, each.scores, each.score_step), sha256)
        for each in found.trials
        for sha256 in [_sha256(found, each)]
    ]
    best = [found.row.best, found.row.best_scores]
    return Outcome(found.row.state, trials, _reports(found), best, found.row.counts)


def _reports(found: SearchRecord) -> list[Report]:
    return [(r.number, r.resource, r.step, r.value, r.decision) for r in found.reports]


def _sha256(found: SearchRecord, trial: SearchTrialRow) -> str | None:
    """Of a complete trial's weights."""
    if trial.state != TrialState.COMPLETE or trial.job_id is None:
        return None
    return str(found.jobs[trial.job_id].results[Stage.TRAIN]["weights_sha256"])


def differences(got: Outcome, wanted: Outcome) -> Iterator[str]:
    if got.state != wanted.state:
        yield f"it is {got.state}, undisturbed {wanted.state}"
    for name in ("trials", "reports"):
        mine, theirs = getattr(got, name), getattr(wanted, name)
        if mine != theirs:
            pairs = enumerate(zip(mine, theirs, strict=False))
            first = next(((n, a, b) for n, (a, b) in pairs if a != b), "the number of them")
            yield f"{len(mine)} {name}, undisturbed {len(theirs)}, first different: {first}"
    if (got.best, got.counts) != (wanted.best, wanted.counts):
        yield f"best {got.best} of {got.counts}, undisturbed {wanted.best} of {wanted.counts}"


# ---- by itself ---------------------------------------------------------------------------------


def faults(found: SearchRecord, *, max_trials: int, may_be_cancelled: bool) -> Iterator[str]:
    """Of an ended search. `max_trials`: with its extensions."""
    is_cancelled = may_be_cancelled and found.row.state == JobState.CANCELLED
    if found.row.state != JobState.SUCCEEDED and not is_cancelled:
        yield f"it is {found.row.state}: {found.row.waiting} {found.row.failure}"
    if not is_cancelled and len(found.trials) != max_trials:
        yield f"it has {len(found.trials)} trials, not {max_trials}"
    yield from _numbers(found)
    yield from _jobs(found)
    yield from _best(found)
    yield from _ends(found)


def _numbers(found: SearchRecord) -> Iterator[str]:
    row = found.row
    if [trial.number for trial in found.trials] != list(range(row.made)):
        yield f"trials {[trial.number for trial in found.trials]}, {row.made} were made"
    if [report.seq for report in found.reports] != list(range(1, row.reported + 1)):
        yield f"reports {[report.seq for report in found.reports]}, {row.reported} were counted"
    counts = Counter(trial.state for trial in found.trials)
    if {state: n for state, n in row.counts.items() if n} != dict(counts):
        yield f"the search counts {row.counts}, the trials are {dict(counts)}"
    ends = sorted(trial.end_number or 0 for trial in found.trials)
    if ends != list(range(1, len(found.trials) + 1)):
        yield f"the trials' ends have the numbers {ends}"
    living = [trial.number for trial in found.trials if TrialState(trial.state) not in OVER]
    if living:
        yield f"trials {living} are not over"


def _jobs(found: SearchRecord) -> Iterator[str]:
    """One job for each trial, and none that has not ended."""
    wanted = {trial.job_id: trial.number for trial in found.trials if trial.job_id is not None}
    got = {job.id: job.trial for job in found.jobs.values()}
    if wanted != got:
        yield f"its jobs are those of trials {sorted(map(str, got.values()))}, not one of each"
    for job in found.jobs.values():
        if JobState(job.state) not in ENDED:
            yield f"{job.id} of trial {job.trial} is still {job.state}"


def _best(found: SearchRecord) -> Iterator[str]:
    complete = [trial for trial in found.trials if trial.state == TrialState.COMPLETE]
    # Of equal ones the first that ended. All searches of this attack minimize one metric.
    ranking = sorted(complete, key=lambda trial: ((trial.scores or [])[0], trial.end_number or 0))
    best = [trial.number for trial in ranking[:1]]
    if found.row.best != best or found.row.best_scores != [t.scores for t in ranking[:1]]:
        yield f"its best trial is {found.row.best}, by their scores {best}"


def _ends(found: SearchRecord) -> Iterator[str]:
    for trial in found.trials:
        job = found.jobs.get(trial.job_id or "")
        if job is None:
            continue
        code = (job.failure or {}).get("code")
        if trial.state == TrialState.COMPLETE and job.state != JobState.SUCCEEDED:
            yield f"trial {trial.number} is complete, its job is {job.state}"
        elif trial.state == TrialState.FAILED:
            yield f"trial {trial.number} failed: {trial.reason}"
        elif trial.state == TrialState.PRUNED:
            is_ended = job.state == JobState.CANCELLED and code == FailureCode.TRIAL_PRUNED
            # It may have finished before its pause reached it.
            if not is_ended and job.state != JobState.SUCCEEDED:
                yield f"trial {trial.number} was pruned, its job is {job.state} for {code}"


# ---- against what it computes ------------------------------------------------------------------


def chain_faults(found: SearchRecord) -> Iterator[str]:
    """Where a report or result of tests/support/stages/chained.py is not what its spec gives."""
    for trial in found.trials:
        if trial.job_id is None:
            continue
        training = JobSpec.accepted(found.jobs[trial.job_id].spec).training
        steps = {step.number: step for step in chained.chain(training)}
        for report in found.reports:
            if report.number == trial.number and report.value != steps[report.step].loss:
                yield f"trial {trial.number} reported {report.value} at {report.step}"
        last = steps[training.max_steps]
        if trial.state == TrialState.COMPLETE and (
            trial.scores != [last.loss] or _sha256(found, trial) != last.weights
        ):
            yield f"trial {trial.number} is complete with {trial.scores}, {_sha256(found, trial)}"


# ---- the decisions -----------------------------------------------------------------------------


def replay_faults(found: SearchRecord, *, are_losers_final: bool) -> Iterator[str]:
    """Recorded decisions that successive halving does not make when the same reports come in the
    same order. `are_losers_final`: the search was neither extended nor cancelled."""
    replay = _Replay(found.spec)
    for report in found.reports:
        yield from replay.report(report)
    for trial in found.trials:
        yield from replay.end(trial, are_losers_final=are_losers_final)


class _Replay:
    """What is decided depends on the reports so far and on which trials are paused."""

    def __init__(self, spec: SearchSpec) -> None:
        assert isinstance(spec.pruner, AshaPruner | HyperbandPruner)
        given = (spec.job.training, spec.dimensions, spec.pruner.unit)
        self._pruner, self._goal = spec.pruner, spec.objectives[0].goal
        self._total, self._every = resources.total(*given), resources.every(*given)
        self._reports: dict[int, dict[int, float]] = defaultdict(dict)
        self._paused: set[int] = set()
        self._could_continue: set[int] = set()
        """Paused trials that were among the best at some moment since."""

    def report(self, report: SearchReportRow) -> Iterator[str]:
        number, value = report.number, report.value
        if value is None:
            yield f"trial {number} reported no number at {report.resource}"
            return
        yield from self._continued(number)
        verdict = self._halving(running=number).report(number, report.resource, value)
        decision = "pause" if verdict.pauses else "continue"
        if report.resource not in verdict.levels:
            yield f"trial {number} reported at {report.resource}, which is not one of its rungs"
        elif len(verdict.levels) != 1 or decision != report.decision:
            yield (
                f"report {report.seq}, trial {number} at {report.resource}: {report.decision}, "
                f"by all reports so far {decision} at {verdict.levels}"
            )
        self._reports[number][report.resource] = value
        if report.decision == "pause":
            self._paused.add(number)
        self._could_continue |= self._promotable()

    def _continued(self, number: int) -> Iterator[str]:
        if number in self._paused:
            if number not in self._could_continue:
                yield f"trial {number} was promoted, but never was among the best"
            self._paused.remove(number)
            self._could_continue.discard(number)

    def end(self, trial: SearchTrialRow, *, are_losers_final: bool) -> Iterator[str]:
        number = trial.number
        is_complete = trial.state == TrialState.COMPLETE
        if is_complete and number in self._paused - self._could_continue:
            yield f"trial {number} is complete, but never was among the best at its rung"
        if trial.state == TrialState.PRUNED:
            if number not in self._paused:
                yield f"trial {number} was pruned, but was not paused at a rung"
            elif are_losers_final and number in self._promotable():
                yield f"trial {number} was pruned, but is among the best at its rung"

    def _halving(self, running: int | None = None) -> Halving:
        halving = Halving(self._pruner, self._total, self._goal, self._every)
        for number in sorted({*self._reports, *([] if running is None else [running])}):
            state = TrialState.PAUSED if number in self._paused else TrialState.RUNNING
            halving.add(Trial(number, {}, state, reports=dict(self._reports[number])))
        return halving

    def _promotable(self) -> set[int]:
        """All, as if there were room for every one."""
        halving, found = self._halving(), set()
        while (number := halving.promote()) is not None:
            found.add(number)
        return found


# ---- what is left ------------------------------------------------------------------------------


def uncleaned(found: SearchRecord, home: Path) -> Iterator[str]:
    for trial in found.trials:
        if trial.state == TrialState.PRUNED:
            if not trial.is_cleaned:
                yield f"trial {trial.number} was pruned, its checkpoints were not removed"
            elif left := list((home / "jobs" / str(trial.job_id)).glob("attempts/*")):
                yield f"trial {trial.number} was pruned, {len(left)} folders are left"
