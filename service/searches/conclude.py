"""The end of a search: losers end, and what was asked for is done with the best trial."""

from service.contract.failures import Failure, FailureCode
from service.contract.search.spec import KeepBest, PublishBest, RefitBest
from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState
from service.searches import trial_specs
from service.searches.look import Look
from service.searches.plan import Refit
from service.store.jobs import new_job_id


def conclude(look: Look) -> None:
    """No trial runs, and none will: the paused ones have lost."""
    for trial in look.live_trials():
        if trial.state is TrialState.PAUSED:
            look.lose(trial)
    if look.plan.cancel or look.facts.stopping:
        return  # until their jobs have ended
    numbers = look.memory.best.numbers
    if numbers:
        _use_best(look, numbers[0])
    else:
        look.fail(_nothing_finished(look))


def _use_best(look: Look, number: int) -> None:
    job_id = look.memory.job_ids[number]
    match look.spec.best:
        case KeepBest():
            look.plan.to = JobState.SUCCEEDED
        case PublishBest() if job_id is not None:
            look.plan.publish = job_id
            look.plan.search["outcome"] = {"action": "publish", "job_id": job_id}
        case RefitBest() as best:
            _refit(look, best, number)


def _refit(look: Look, best: RefitBest, number: int) -> None:
    values = look.memory.trials[number].values
    try:
        spec = trial_specs.of_refit(look.memory, best, values)
    except trial_specs.RefusedError as error:
        look.fail(error.failure)
        return
    look.plan.refit = refit = Refit(new_job_id(), spec)
    look.plan.search["outcome"] = {"action": "refit", "job_id": refit.job_id}


def follow_outcome(look: Look) -> None:
    """The job that publishes the best trial, or is trained with its values, has been asked for."""
    state, failure = look.facts.outcome_state, look.facts.outcome_failure
    if state is JobState.SUCCEEDED:
        look.plan.to = JobState.SUCCEEDED
    elif failure is not None and state in ENDED:
        look.fail(Failure.model_validate(failure))
    elif state is None or state in ENDED:
        look.fail(_gone(look, "was deleted" if state is None else f"is {state}"))


def _gone(look: Look, what: str) -> Failure:
    outcome = look.facts.row.outcome or {}
    return Failure.of(
        FailureCode.CANCELLED,
        f"The job that was to {outcome.get('action')} the best trial {what}.",
        action=f"The trials are kept: see `finetune search best {look.facts.row.id}`.",
    )


def _nothing_finished(look: Look) -> Failure:
    trials = look.memory.trials
    failed = sum(trial.state is TrialState.FAILED for trial in trials)
    return Failure.of(
        FailureCode.INVALID_OPTION,
        f"None of the {len(trials)} trials has finished; {failed} failed.",
        action=f"See why with `finetune search trials {look.facts.row.id}`, change the spec, and "
        "submit it again.",
    )
