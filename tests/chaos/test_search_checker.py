"""The checker of searches itself: a correct search has no faults, each broken promise has one."""

from datetime import UTC, datetime
from typing import Any

import pytest

from chaos.attacks.processes import search
from chaos.checks import search_checker
from chaos.checks.search_checker import SearchRecord
from service.contract.search.states import TrialState
from service.store.tables.jobs import JobRow
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow

AT = datetime(2026, 11, 25, tzinfo=UTC)
# Two of four continue. Trial 2 is among them once the last one has arrived.
REPORTS = [(0, 1.0, "continue"), (1, 2.0, "pause"), (2, 1.5, "pause"), (3, 3.0, "pause")]
STATES = ("complete", "pruned", "complete", "pruned")
SCORES = {0: 0.5, 2: 0.7}
PRUNED = {"code": "trial_pruned", "message": "others were better"}


def recorded(
    reports: list[tuple[int, float, str]] = REPORTS, states: tuple[str, ...] = STATES
) -> SearchRecord:
    """An ended search of four trials, with one rung at step 2."""
    trials = [_trial(number, state) for number, state in enumerate(states)]
    counts = {state: states.count(state) for state in states}
    row = SearchRow(
        id="search-1",
        spec=search._small("random", 1),
        state="succeeded",
        made=4,
        reported=len(reports),
        counts=counts,
        best=[0],
        best_scores=[[0.5]],
    )
    rows = [
        SearchReportRow(
            number=number, resource=2, seq=seq, step=2, value=value, decision=decision, at=AT
        )
        for seq, (number, value, decision) in enumerate(reports, 1)
    ]
    jobs = {f"job-{trial.number}": _job(trial) for trial in trials}
    return SearchRecord(row, trials, rows, jobs)


def _trial(number: int, state: str) -> SearchTrialRow:
    scores = [SCORES.get(number, 0.9)] if state == "complete" else None
    return SearchTrialRow(
        number=number, state=state, job_id=f"job-{number}", scores=scores, end_number=number + 1
    )


def _job(trial: SearchTrialRow) -> JobRow:
    is_complete = trial.state == TrialState.COMPLETE
    return JobRow(
        id=trial.job_id,
        trial=trial.number,
        state="succeeded" if is_complete else "cancelled",
        failure=None if is_complete else PRUNED,
    )


def faults(found: SearchRecord, *, max_trials: int = 4) -> list[str]:
    return [
        *search_checker.faults(found, max_trials=max_trials, may_be_cancelled=False),
        *search_checker.replay_faults(found, are_losers_final=True),
    ]


def test_a_correct_search_has_no_faults() -> None:
    assert faults(recorded()) == []


@pytest.mark.parametrize(
    ("reports", "states", "fault"),
    [
        (
            [(0, 1.0, "continue"), (1, 2.0, "continue"), *REPORTS[2:]],
            STATES,
            "report 2, trial 1 at 2: continue, by all reports so far pause",
        ),
        (REPORTS, ("complete", "pruned", "pruned", "pruned"), "trial 2 was pruned, but is among"),
        (REPORTS, ("complete", "complete", "complete", "pruned"), "trial 1 is complete, but never"),
        (REPORTS, ("pruned", "pruned", "complete", "pruned"), "trial 0 was pruned, but was not"),
        (REPORTS, ("complete", "pruned", "complete", "paused"), "trials [3] are not over"),
        (REPORTS, ("complete", "pruned", "complete", "failed"), "trial 3 failed"),
    ],
)
def test_a_wrong_decision_is_found(
    reports: list[tuple[int, float, str]], states: tuple[str, ...], fault: str
) -> None:
    assert any(fault in each for each in faults(recorded(reports, states)))


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"state": "failed"}, "it is failed"),
        ({"made": 5}, "5 were made"),
        ({"reported": 5}, "5 were counted"),
        ({"counts": {"complete": 4}}, "the search counts"),
        ({"best": [2]}, "its best trial is [2]"),
        ({"best_scores": [[0.4]]}, "its best trial is [0]"),
    ],
)
def test_wrong_totals_are_found(columns: dict[str, Any], fault: str) -> None:
    found = recorded()
    for name, value in columns.items():
        setattr(found.row, name, value)
    assert any(fault in each for each in faults(found))


def test_trials_that_were_not_made_are_missed() -> None:
    assert faults(recorded(), max_trials=5) == ["it has 4 trials, not 5"]


def test_a_job_that_still_runs_is_found() -> None:
    found = recorded()
    found.jobs["job-1"].state = "running"
    assert "job-1 of trial 1 is still running" in faults(found)


def test_a_second_job_of_a_trial_is_found() -> None:
    found = recorded()
    found.jobs["job-9"] = JobRow(id="job-9", trial=1, state="cancelled", failure=PRUNED)
    assert any("not one of each" in each for each in faults(found))


def test_a_pruned_trial_whose_job_was_cancelled_otherwise_is_found() -> None:
    found = recorded()
    found.jobs["job-1"].failure = {"code": "cancelled", "message": ""}
    assert "trial 1 was pruned, its job is cancelled for cancelled" in faults(found)
