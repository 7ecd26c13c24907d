"""Decides what follows for a search from what its trials' jobs have done; writes nothing."""

from service.contract.search.states import TrialState
from service.contract.states import JobState
from service.searches import requests
from service.searches.conclude import conclude, follow_outcome
from service.searches.failing import shared_failure
from service.searches.fill import fill
from service.searches.look import Look
from service.searches.memory import Memory
from service.searches.observe import observe
from service.searches.plan import Plan
from service.store.jobs import jsonable
from service.store.search_trials import Facts


def decide(memory: Memory, facts: Facts) -> Plan:
    """What to write. The memory is then as after the write, and must be dropped if that fails."""
    look = Look(memory, facts)
    observe(look)
    if not _has_failed(look):
        _follow(look)
    _note_totals(look)
    return look.plan


def _has_failed(look: Look) -> bool:
    failure = shared_failure(look.memory, look.facts, look.plan)
    if failure is None or look.state is JobState.CANCELLING:
        return False
    look.plan.search["failure"] = failure.model_dump(mode="json")
    requests.cancel(look)
    return True


def _follow(look: Look) -> None:
    match look.state:
        case JobState.QUEUED | JobState.RUNNING if look.facts.row.outcome is not None:
            follow_outcome(look)
        case JobState.QUEUED | JobState.RUNNING:
            _go_on(look)
        case JobState.PAUSING | JobState.PAUSED:
            requests.pause(look)
        case JobState.CANCELLING:
            requests.cancel(look)


def _go_on(look: Look) -> None:
    requests.continue_held(look)
    # A place that a stopping job still has may be for a trial that can be promoted by now.
    is_all_begun = fill(look)
    if _has_failed(look):  # by trials whose specs were refused
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
