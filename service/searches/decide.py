"""Decides what follows for a search from what its trials' jobs have done; writes nothing."""

from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState
from service.searches.conclude import conclude, follow_outcome
from service.searches.failing import shared_failure
from service.searches.fill import fill
from service.searches.memory import Memory
from service.searches.observe import observe
from service.searches.plan import Plan
from service.searches.search_pass import OCCUPIES, Pass
from service.store.database import jsonable
from service.store.jobs.state import CANCELLED
from service.store.searches.trials import Facts


def decide(memory: Memory, facts: Facts) -> Plan:
    """What to write. The memory is then as after the write, and must be dropped if that fails."""
    current = Pass(memory, facts)
    observe(current)
    if not _cancel_if_failed(current):
        _follow(current)
    _note_totals(current)
    return current.plan


def _cancel_if_failed(current: Pass) -> bool:
    """Whether what failed in this pass ends the whole search."""
    failure = shared_failure(current.memory, current.facts, current.plan)
    if failure is None or current.state is JobState.CANCELLING:
        return False
    current.plan.search["failure"] = failure.model_dump(mode="json")
    _cancel(current)
    return True


def _follow(current: Pass) -> None:
    match current.state:
        case JobState.QUEUED | JobState.RUNNING if current.facts.row.outcome is not None:
            follow_outcome(current)
        case JobState.QUEUED | JobState.RUNNING:
            _go_on(current)
        case JobState.PAUSING | JobState.PAUSED:
            _pause(current)
        case JobState.CANCELLING:
            _cancel(current)


def _go_on(current: Pass) -> None:
    _continue_held(current)
    # A place that a stopping job still has may be for a trial that can be promoted by now.
    is_all_begun = fill(current)
    if _cancel_if_failed(current):  # because of trials whose specs were refused
        return
    is_busy = any(trial.state is TrialState.RUNNING for trial in current.live_trials())
    if is_all_begun and not is_busy:
        conclude(current)


def _note_totals(current: Pass) -> None:
    plan, memory, row = current.plan, current.memory, current.facts.row
    if current.state is JobState.QUEUED and plan.made and plan.to is None:
        plan.to = JobState.RUNNING
    if plan.is_empty:
        return
    if plan.made and row.started_at is None:
        plan.search["started_at"] = current.facts.now
    plan.search |= {
        "made": len(memory.trials),
        "reported": memory.reported,
        "counts": memory.counts(),
        "best": memory.best.numbers,
        "best_scores": jsonable(memory.best.scores),
        "without_gain": memory.without_gain,
        "waiting": None,
    }


# ---- what the user asked for: the trials' jobs follow it ----------------------------------------


def _continue_held(current: Pass) -> None:
    """The search was paused, and continues."""
    for number in sorted(current.memory.held):
        current.resume_job(number)
        current.plan.change(number, is_held=False)
    current.memory.held.clear()


def _pause(current: Pass) -> None:
    """Of a job that the user paused or that waits at a rung nothing changes."""
    for number, job in list(current.jobs.items()):
        is_running = current.memory.trials[number].state is TrialState.RUNNING
        if is_running and job.state in (JobState.QUEUED, JobState.RUNNING):
            current.pause_job(number)
            current.memory.held.add(number)
            current.plan.change(number, is_held=True)
    is_held = any(job.state in OCCUPIES for job in current.facts.jobs.values())
    if current.state is JobState.PAUSING and not is_held and not current.plan.pause:
        current.plan.to = JobState.PAUSED


def _cancel(current: Pass) -> None:
    """End everything that has not ended, then the search: as cancelled, or as failed if it has a
    failure."""
    for number in list(current.facts.jobs):
        trial = current.memory.trials[number]
        if not trial.is_over:
            current.end(trial, TrialState.CANCELLED, reason="the search was ended")
            current.cancel_job(number)
    outcome = current.facts.row.outcome
    if outcome is not None and current.facts.outcome_state not in (None, *ENDED):
        current.plan.cancel.append((outcome["job_id"], CANCELLED))
    if current.state is not JobState.CANCELLING:
        current.plan.to = JobState.CANCELLING
    elif not current.plan.cancel and not current.facts.stopping:
        has_failed = current.facts.row.failure is not None
        current.plan.to = JobState.FAILED if has_failed else JobState.CANCELLED
