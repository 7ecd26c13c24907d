"""Makes and promotes trials while there is a free place."""

from datetime import timedelta
from typing import Any, Final

from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState, Stage
from service.searches import trial_specs
from service.searches.plan import NewTrial
from service.searches.search_pass import OCCUPIES, Pass
from service.store.jobs.state import new_job_id
from service.store.searches.trials import TrialJob

_MOST_NEW: Final = 16
"""Trials made in one pass, if the spec refuses one after the other."""


def fill(current: Pass) -> bool:
    """Whether nothing is left to begin: there is a free place, but no trial can be made or
    promoted.

    At most one trial waits for a worker, so that the jobs of others are never behind many.
    """
    for _ in range(_MOST_NEW):
        is_one_waiting = any(job.state is JobState.QUEUED for job in current.jobs.values())
        if is_one_waiting or _busy(current) >= current.spec.max_parallel:
            return False
        promoted = _next_promoted(current)
        if promoted is not None:
            _promote(current, promoted)
        elif _may_make_more(current):
            _make(current)
        elif (rescued := _rescued(current)) is not None:
            _promote(current, rescued)
        else:
            return True
    return False


def _busy(current: Pass) -> int:
    """How many places are taken. Pruned trials keep theirs until they have stopped."""
    return len(current.facts.stopping) + sum(
        job.state in OCCUPIES or _is_unread(current, job) for job in current.jobs.values()
    )


def _is_unread(current: Pass, job: TrialJob) -> bool:
    """A trial that was just promoted, although its job had reached its end before its pause: what
    that has reported comes before anything else begins, as if it had stopped in time."""
    is_running = current.memory.trials[job.number].state is TrialState.RUNNING
    return is_running and (job.state is None or job.state in ENDED)


def _may_make_more(current: Pass) -> bool:
    return (
        len(current.memory.trials) < current.facts.row.max_trials
        and not current.memory.study.is_exhausted
        and not _is_over(current)
    )


def _is_over(current: Pass) -> bool:
    """Whether nothing begins any more, new or promoted."""
    limit = current.spec.stop_after_trials_without_gain
    if limit is not None and current.memory.without_gain >= limit:
        return True
    seconds, begun = current.spec.timeout_seconds, current.facts.row.started_at
    if seconds is None or begun is None:
        return False
    return current.facts.now >= begun + timedelta(seconds=seconds)


def _next_promoted(current: Pass) -> int | None:
    """A paused trial that is to continue, and counts as running from now on."""
    if current.memory.halving is None or _is_over(current):
        return None
    return current.memory.halving.promote()


def _rescued(current: Pass) -> int | None:
    """The next best trial, where none is complete and all that were promoted have failed."""
    halving = current.memory.halving
    if halving is None or current.memory.best.numbers or _is_over(current):
        return None
    if any(trial.state is TrialState.RUNNING for trial in current.live_trials()):
        return None
    return halving.rescue()


def _promote(current: Pass, number: int) -> None:
    current.memory.study.resume(number)
    current.plan.change(number, state=TrialState.RUNNING)
    current.resume_job(number)


def _make(current: Pass) -> None:
    memory, number = current.memory, len(current.memory.trials)
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
        current.plan.made.append(NewTrial(number, **given, job_id=None, spec=None))
        failure = error.failure.model_dump(mode="json")
        current.end(trial, TrialState.FAILED, reason=error.failure.message, failure=failure)
        return
    job_id = new_job_id()
    current.plan.made.append(NewTrial(number, **given, job_id=job_id, spec=spec))
    memory.job_ids[number] = job_id
    current.jobs[number] = TrialJob(number, job_id, JobState.QUEUED, Stage.PREPARE, 0, None, {})
