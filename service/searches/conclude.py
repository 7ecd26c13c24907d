"""The end of a search: losers end, and the best trial is published or trained again, as the spec
says."""

from service.contract.failures import Failure, FailureCode
from service.contract.search.spec import KeepBest, PublishBest, RefitBest
from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState
from service.searches import trial_specs
from service.searches.plan import Refit
from service.searches.search_pass import Pass
from service.store.jobs.state import new_job_id


def conclude(current: Pass) -> None:
    """No trial runs or will run: the paused ones have lost."""
    for trial in current.live_trials():
        if trial.state is TrialState.PAUSED:
            current.prune_paused(trial)
    if current.plan.cancel or current.facts.stopping:
        return  # until their jobs have ended
    numbers = current.memory.best.numbers
    if numbers:
        _use_best(current, numbers[0])
    else:
        current.fail(_nothing_finished(current))


def _use_best(current: Pass, number: int) -> None:
    job_id = current.memory.job_ids[number]
    match current.spec.best:
        case KeepBest():
            current.plan.to = JobState.SUCCEEDED
        case PublishBest() if job_id is not None:
            current.plan.publish = job_id
            current.plan.search["outcome"] = {"action": "publish", "job_id": job_id}
        case RefitBest() as best:
            _refit(current, best, number)


def _refit(current: Pass, best: RefitBest, number: int) -> None:
    values = current.memory.trials[number].values
    try:
        spec = trial_specs.of_refit(current.memory, best, values)
    except trial_specs.RefusedError as error:
        current.fail(error.failure)
        return
    current.plan.refit = refit = Refit(new_job_id(), spec)
    current.plan.search["outcome"] = {"action": "refit", "job_id": refit.job_id}


def follow_outcome(current: Pass) -> None:
    """The job that publishes the best trial, or is trained with its values, has been asked for."""
    state, failure = current.facts.outcome_state, current.facts.outcome_failure
    if state is JobState.SUCCEEDED:
        current.plan.to = JobState.SUCCEEDED
    elif failure is not None and state in ENDED:
        current.fail(Failure.model_validate(failure))
    elif state is None or state in ENDED:
        current.fail(_outcome_lost(current, "was deleted" if state is None else f"is {state}"))


def _outcome_lost(current: Pass, what: str) -> Failure:
    outcome = current.facts.row.outcome or {}
    return Failure.from_code(
        FailureCode.CANCELLED,
        f"The job that was to {outcome.get('action')} the best trial {what}.",
        action=f"The trials are kept: see `finetune search best {current.facts.row.id}`.",
    )


def _nothing_finished(current: Pass) -> Failure:
    trials = current.memory.trials
    failed = sum(trial.state is TrialState.FAILED for trial in trials)
    return Failure.from_code(
        FailureCode.INVALID_OPTION,
        f"None of the {len(trials)} trials has finished; {failed} failed.",
        action=f"See why with `finetune search trials {current.facts.row.id}`, change the spec, "
        "and submit it again.",
    )
