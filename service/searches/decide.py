"""Decides what follows for a search from what its trials' jobs have done; writes nothing."""

from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState
from service.searches.conclude import conclude, follow_outcome
from service.searches.failing import shared_failure
from service.searches.fill import fill
from service.searches.look import OCCUPIES, Look
from service.searches.memory import Memory
from service.searches.observe import observe
from service.searches.plan import Plan
from service.store.jobs import CANCELLED, jsonable
from service.store.search_trials import Facts


def decide(memory: Memory, facts: Facts) -> Plan:
    """What to write. The memory is then as after the write, and must be dropped if that fails."""
    look = Look(memory, facts)
    observe(look)
    if not _cancel_if_failed(look):
        _follow(look)
    _note_totals(look)
    return look.plan


def _cancel_if_failed(look: Look) -> bool:
    """Whether what failed in this look ends the whole search."""
    failure = shared_failure(look.memory, look.facts, look.plan)
    if failure is None or look.state is JobState.CANCELLING:
        return False
    look.plan.search["failure"] = failure.model_dump(mode="json")
    _cancel(look)
    return True


def _follow(look: Look) -> None:
    match look.state:
        case JobState.QUEUED | JobState.RUNNING if look.facts.row.outcome is not None:
            follow_outcome(look)
        case JobState.QUEUED | JobState.RUNNING:
            _go_on(look)
        case JobState.PAUSING | JobState.PAUSED:
            _pause(look)
        case JobState.CANCELLING:
            _cancel(look)


def _go_on(look: Look) -> None:
    _continue_held(look)
    # A place that a stopping job still has may be for a trial that can be promoted by now.
    is_all_begun = fill(look)
    if _cancel_if_failed(look):  # because of trials whose specs were refused
        return
    is_busy = any(trial.state is TrialState.RUNNING for trial in look.live_trials())
    if is_all_begun and not is_busy:
        conclude(look)


def _note_totals(look: Look) -> None:
    plan, memory, row = look.plan, look.memory, look.facts.row
    if look.state is JobState.QUEUED and plan.made and plan.to is None:
        plan.to = JobState.RUNNING
    if plan.is_empty:
        return
    if plan.made and row.started_at is None:
        plan.search["started_at"] = look.facts.now
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


def _continue_held(look: Look) -> None:
    """The search was paused, and continues."""
    for number in sorted(look.memory.held):
        look.resume_job(number)
        look.plan.change(number, is_held=False)
    look.memory.held.clear()


def _pause(look: Look) -> None:
    """Of a job that the user paused or that waits at a rung nothing changes."""
    for number, job in list(look.jobs.items()):
        is_running = look.memory.trials[number].state is TrialState.RUNNING
        if is_running and job.state in (JobState.QUEUED, JobState.RUNNING):
            look.pause_job(number)
            look.memory.held.add(number)
            look.plan.change(number, is_held=True)
    is_held = any(job.state in OCCUPIES for job in look.facts.jobs.values())
    if look.state is JobState.PAUSING and not is_held and not look.plan.pause:
        look.plan.to = JobState.PAUSED


def _cancel(look: Look) -> None:
    """End everything that has not ended, then the search: as cancelled, or as failed if it has a
    failure."""
    for number in list(look.facts.jobs):
        trial = look.memory.trials[number]
        if not trial.is_over:
            look.end(trial, TrialState.CANCELLED, reason="the search was ended")
            look.cancel_job(number)
    outcome = look.facts.row.outcome
    if outcome is not None and look.facts.outcome_state not in (None, *ENDED):
        look.plan.cancel.append((outcome["job_id"], CANCELLED))
    if look.state is not JobState.CANCELLING:
        look.plan.to = JobState.CANCELLING
    elif not look.plan.cancel and not look.facts.stopping:
        has_failed = look.facts.row.failure is not None
        look.plan.to = JobState.FAILED if has_failed else JobState.CANCELLED
