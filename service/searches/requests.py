"""What the user asked of a search, as its trials' jobs follow it."""

from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState
from service.searches.look import OCCUPIES, Look
from service.store.jobs import CANCELLED


def continue_held(look: Look) -> None:
    """The search was paused, and continues."""
    for number in sorted(look.memory.held):
        look.resume_job(number)
        look.plan.change(number, is_held=False)
    look.memory.held.clear()


def pause(look: Look) -> None:
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


def cancel(look: Look) -> None:
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
