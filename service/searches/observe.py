"""What the trials' jobs have done since the last look: reports, and ends."""

import math

from service.contract.failures import Failure, FailureCode
from service.contract.search.pruners import MedianPruner, PatiencePruner
from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState, Stage
from service.searches.look import Look
from service.searches.plan import NewReport, ReportDecision
from service.store.search_trials import Evaluated, TrialJob
from service.studies.history import Trial


def observe(look: Look) -> None:
    """Every evaluation that the search has not read, in order, then the ends."""
    for evaluated in look.facts.evaluations:
        trial = look.memory.trials[evaluated.number]
        if trial.state is not TrialState.RUNNING:
            continue  # stopped by an earlier evaluation of this look
        value = _value(look, evaluated)
        if value is not None:
            _report(look, trial, evaluated, value)
            _end_hopeless(look)
        if trial.state is TrialState.RUNNING:
            look.plan.change(trial.number, seen_metrics=evaluated.seq)
    for job in look.facts.jobs.values():
        trial = look.memory.trials[job.number]
        is_gone = job.state is None or job.state in ENDED
        if trial.state is TrialState.RUNNING and is_gone:
            _note_end(look, trial, job)
            _end_hopeless(look)


def _end_hopeless(look: Look) -> None:
    """Paused trials that cannot be among the best any more make room on the disk, once a trial is
    complete: if all that are promoted fail, the next best ones are needed. After each report and
    end, so that the order in which trials end does not depend on how many of them one look sees."""
    if look.memory.halving is None or look.state is JobState.CANCELLING:
        return
    if not look.memory.best.numbers:
        return
    to_come = look.facts.row.max_trials - len(look.memory.trials)
    for number in look.memory.halving.hopeless(to_come):
        look.lose(look.memory.trials[number])


def _value(look: Look, evaluated: Evaluated) -> float | None:
    """None with several objectives, which no pruner compares, or without the metric."""
    if len(look.spec.objectives) != 1:
        return None
    key = look.spec.objectives[0].key
    found = evaluated.values.get(key, evaluated.values.get(key.removeprefix("eval_")))
    return None if found is None else float(found)


def _report(look: Look, trial: Trial, evaluated: Evaluated, value: float) -> None:
    if look.memory.halving is not None:
        _report_rungs(look, trial, evaluated, value)
        return
    resource = round(evaluated.epoch or 0) if look.unit == "epochs" else evaluated.step
    if resource in trial.reports:
        return
    look.memory.study.report(trial.number, resource, value)
    may_prune = isinstance(look.spec.pruner, MedianPruner | PatiencePruner)
    is_pruned = may_prune and look.memory.study.should_prune(trial.number)
    _add_report(look, evaluated, resource, value, "prune" if is_pruned else "continue")
    if is_pruned:
        look.prune(trial, _why_pruned(look, resource, value))


def _report_rungs(look: Look, trial: Trial, evaluated: Evaluated, value: float) -> None:
    memory = look.memory
    assert memory.halving is not None
    resource = evaluated.epoch or 0.0 if look.unit == "epochs" else evaluated.step
    verdict = memory.halving.report(trial.number, resource, value)
    for level in verdict.levels:
        memory.study.report(trial.number, level, value)
        pauses = verdict.pauses and level == verdict.levels[-1]
        _add_report(look, evaluated, level, value, "pause" if pauses else "continue")
    if verdict.pauses:
        memory.study.end(trial.number, TrialState.PAUSED)
        # The same evaluation may have reached further rungs: it is read again when the trial
        # continues.
        look.plan.change(trial.number, state=trial.state, seen_metrics=evaluated.seq - 1)
        look.pause_job(trial.number)


def _add_report(
    look: Look, evaluated: Evaluated, resource: int, value: float, decision: ReportDecision
) -> None:
    look.memory.reported += 1
    look.plan.reports.append(
        NewReport(evaluated.number, resource, evaluated.step, value, decision, evaluated.at)
    )


def _why_pruned(look: Look, resource: int, value: float) -> str:
    unit = look.unit.removesuffix("s")
    at = f"{look.spec.objectives[0].key} {value:.4g} at {unit} {resource}"
    if isinstance(look.spec.pruner, PatiencePruner):
        return f"{at}: no gain in {look.spec.pruner.patience} evaluations"
    return f"{at}: its best so far is worse than the median of the finished trials there"


def _note_end(look: Look, trial: Trial, job: TrialJob) -> None:
    if job.state is JobState.SUCCEEDED:
        _complete(look, trial, job)
    elif job.state is JobState.FAILED:
        reason = str((job.failure or {}).get("message", "its job failed"))
        look.end(trial, TrialState.FAILED, reason=reason, failure=job.failure)
    else:
        reason = "its job was deleted" if job.state is None else "its job was cancelled"
        look.end(trial, TrialState.CANCELLED, reason=reason)


def _complete(look: Look, trial: Trial, job: TrialJob) -> None:
    """Its scores are those of the finished model, which may be that of an earlier evaluation."""
    result = job.results.get(Stage.TRAIN, {})
    metrics = result.get("metrics", {})
    keys = [objective.key for objective in look.spec.objectives]
    scores = [float(metrics.get(key, "nan")) for key in keys]
    for key, score in zip(keys, scores, strict=True):
        if math.isnan(score):
            what = "is not a number" if key in metrics else "was not reported"
            failure = Failure.of(FailureCode.INVALID_OPTION, f"`{key}` {what} at its end.")
            told = failure.model_dump(mode="json")
            look.end(trial, TrialState.FAILED, reason=failure.message, failure=told)
            return
    step = result.get("model_step") or result.get("steps")
    look.end(trial, TrialState.COMPLETE, scores=scores, score_step=step)
