"""Makes and promotes trials while there is a free place."""

from datetime import timedelta
from typing import Any, Final

from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState, Stage
from service.searches import trial_specs
from service.searches.look import OCCUPIES, Look
from service.searches.plan import NewTrial
from service.store.jobs import new_job_id
from service.store.search_trials import TrialJob

_MOST_NEW: Final = 16
"""Trials made in one look, where specs refuse one after the other."""


def fill(look: Look) -> bool:
    """Whether nothing is left to begin: no trial can be made or promoted, though there is a place.

    At most one trial waits for a worker, so that the jobs of others are never behind many.
    """
    for _ in range(_MOST_NEW):
        is_one_waiting = any(job.state is JobState.QUEUED for job in look.jobs.values())
        if is_one_waiting or _busy(look) >= look.spec.max_parallel:
            return False
        promoted = _next_promoted(look)
        if promoted is not None:
            _promote(look, promoted)
        elif _may_make_more(look):
            _make(look)
        elif (rescued := _rescued(look)) is not None:
            _promote(look, rescued)
        else:
            return True
    return False


def _busy(look: Look) -> int:
    """How many places are taken. Of pruned trials, too, until they have stopped."""
    return len(look.facts.stopping) + sum(
        job.state in OCCUPIES or _is_unread(look, job) for job in look.jobs.values()
    )


def _is_unread(look: Look, job: TrialJob) -> bool:
    """A trial that was just promoted, although its job had reached its end before its pause: what
    that has reported comes before anything else begins, as if it had stopped in time."""
    is_running = look.memory.trials[job.number].state is TrialState.RUNNING
    return is_running and (job.state is None or job.state in ENDED)


def _may_make_more(look: Look) -> bool:
    return (
        len(look.memory.trials) < look.facts.row.max_trials
        and not look.memory.study.is_exhausted
        and not _is_over(look)
    )


def _is_over(look: Look) -> bool:
    """Whether nothing begins any more, new or promoted."""
    limit = look.spec.stop_after_trials_without_gain
    if limit is not None and look.memory.without_gain >= limit:
        return True
    seconds, begun = look.spec.timeout_seconds, look.facts.row.started_at
    if seconds is None or begun is None:
        return False
    return look.facts.now >= begun + timedelta(seconds=seconds)


def _next_promoted(look: Look) -> int | None:
    """A paused trial that is to continue, and counts as running from now on."""
    if look.memory.halving is None or _is_over(look):
        return None
    return look.memory.halving.promote()


def _rescued(look: Look) -> int | None:
    """The next best trial, where none is complete and all that were promoted have failed."""
    halving = look.memory.halving
    if halving is None or look.memory.best.numbers or _is_over(look):
        return None
    if any(trial.state is TrialState.RUNNING for trial in look.live_trials()):
        return None
    return halving.rescue()


def _promote(look: Look, number: int) -> None:
    look.memory.study.resume(number)
    look.plan.change(number, state=TrialState.RUNNING)
    look.resume_job(number)


def _make(look: Look) -> None:
    memory, number = look.memory, len(look.memory.trials)
    first = memory.first(number)
    trial = memory.study.ask(None if first is None else first.values)
    if memory.halving is not None:
        memory.halving.add(trial)
    given: dict[str, Any] = {
        "values": trial.values,
        "attrs": trial.attrs,
        "origin": "sampled" if first is None else first.origin,
    }
    try:
        spec = trial_specs.of_trial(memory, number, trial.values)
    except trial_specs.RefusedError as error:
        look.plan.made.append(NewTrial(number, **given, job_id=None, spec=None))
        told = error.failure.model_dump(mode="json")
        look.end(trial, TrialState.FAILED, reason=error.failure.message, failure=told)
        return
    job_id = new_job_id()
    look.plan.made.append(NewTrial(number, **given, job_id=job_id, spec=spec))
    memory.job_ids[number] = job_id
    look.jobs[number] = TrialJob(number, job_id, JobState.QUEUED, Stage.PREPARE, 0, None, {})
