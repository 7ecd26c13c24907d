"""What the trials' jobs have done since the last pass: reports, and ends."""

import math

from service.contract.failures import Failure, FailureCode
from service.contract.search.pruners import MedianPruner, PatiencePruner
from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState, Stage
from service.searches.plan import NewReport, ReportDecision
from service.searches.search_pass import Pass
from service.store.searches.trials import Evaluated, TrialJob
from service.studies.history import Trial


def observe(current: Pass) -> None:
    """Every evaluation that the search has not read, in order, then the ends."""
    for evaluated in current.facts.evaluations:
        trial = current.memory.trials[evaluated.number]
        if trial.state is not TrialState.RUNNING:
            continue  # stopped by an earlier evaluation of this pass
        value = _value(current, evaluated)
        if value is not None:
            _report(current, trial, evaluated, value)
            _end_hopeless(current)
        if trial.state is TrialState.RUNNING:
            current.plan.change(trial.number, seen_metrics=evaluated.seq)
    for job in current.facts.jobs.values():
        trial = current.memory.trials[job.number]
        has_ended = job.state is None or job.state in ENDED
        if trial.state is TrialState.RUNNING and has_ended:
            _note_end(current, trial, job)
            _end_hopeless(current)


def _end_hopeless(current: Pass) -> None:
    """Paused trials that cannot be among the best any more make room on the disk, once a trial is
    complete: if all that are promoted fail, the next best ones are needed. After each report and
    end, so that the order in which trials end does not depend on how many of them one pass sees."""
    if current.memory.halving is None or current.state is JobState.CANCELLING:
        return
    if not current.memory.best.numbers:
        return
    to_come = current.facts.row.max_trials - len(current.memory.trials)
    for number in current.memory.halving.hopeless(to_come):
        current.prune_paused(current.memory.trials[number])


def _value(current: Pass, evaluated: Evaluated) -> float | None:
    """None with several objectives, which no pruner compares, or without the metric."""
    if len(current.spec.objectives) != 1:
        return None
    key = current.spec.objectives[0].key
    found = evaluated.values.get(key, evaluated.values.get(key.removeprefix("eval_")))
    return None if found is None else float(found)


def _report(current: Pass, trial: Trial, evaluated: Evaluated, value: float) -> None:
    if current.memory.halving is not None:
        _report_rungs(current, trial, evaluated, value)
        return
    resource = round(evaluated.epoch or 0) if current.unit == "epochs" else evaluated.step
    if resource in trial.reports:
        return
    current.memory.study.report(trial.number, resource, value)
    may_prune = isinstance(current.spec.pruner, MedianPruner | PatiencePruner)
    is_pruned = may_prune and current.memory.study.should_prune(trial.number)
    _add_report(current, evaluated, resource, value, "prune" if is_pruned else "continue")
    if is_pruned:
        current.prune(trial, _why_pruned(current, resource, value))


def _report_rungs(current: Pass, trial: Trial, evaluated: Evaluated, value: float) -> None:
    memory = current.memory
    assert memory.halving is not None
    resource = evaluated.epoch or 0.0 if current.unit == "epochs" else evaluated.step
    verdict = memory.halving.report(trial.number, resource, value)
    for level in verdict.levels:
        memory.study.report(trial.number, level, value)
        pauses = verdict.pauses and level == verdict.levels[-1]
        _add_report(current, evaluated, level, value, "pause" if pauses else "continue")
    if verdict.pauses:
        memory.study.end(trial.number, TrialState.PAUSED)
        # The same evaluation may have reached further rungs: it is read again when the trial
        # continues.
        current.plan.change(trial.number, state=trial.state, seen_metrics=evaluated.seq - 1)
        current.pause_job(trial.number)


def _add_report(
    current: Pass, evaluated: Evaluated, resource: int, value: float, decision: ReportDecision
) -> None:
    current.memory.reported += 1
    current.plan.reports.append(
        NewReport(evaluated.number, resource, evaluated.step, value, decision, evaluated.at)
    )


def _why_pruned(current: Pass, resource: int, value: float) -> str:
    unit = current.unit.removesuffix("s")
    at = f"{current.spec.objectives[0].key} {value:.4g} at {unit} {resource}"
    if isinstance(current.spec.pruner, PatiencePruner):
        return f"{at}: no gain in {current.spec.pruner.patience} evaluations"
    return f"{at}: its best so far is worse than the median of the finished trials there"


def _note_end(current: Pass, trial: Trial, job: TrialJob) -> None:
    if job.state is JobState.SUCCEEDED:
        _complete(current, trial, job)
    elif job.state is JobState.FAILED:
        reason = str((job.failure or {}).get("message", "its job failed"))
        current.end(trial, TrialState.FAILED, reason=reason, failure=job.failure)
    else:
        reason = "its job was deleted" if job.state is None else "its job was cancelled"
        current.end(trial, TrialState.CANCELLED, reason=reason)


def _complete(current: Pass, trial: Trial, job: TrialJob) -> None:
    """Its scores are those of the finished model, which may be that of an earlier evaluation."""
    result = job.results.get(Stage.TRAIN, {})
    metrics = result.get("metrics", {})
    keys = [objective.key for objective in current.spec.objectives]
    scores = [float(metrics.get(key, "nan")) for key in keys]
    for key, score in zip(keys, scores, strict=True):
        if math.isnan(score):
            what = "is not a number" if key in metrics else "was not reported"
            failure = Failure.from_code(
                FailureCode.INVALID_OPTION,
                f"`{key}` {what} at its end.",
                action=f"See what it reported with `finetune logs {job.job_id}`. Name one of "
                "these metrics in `objective` of the search, or change what made it fail.",
            )
            dumped = failure.model_dump(mode="json")
            current.end(trial, TrialState.FAILED, reason=failure.message, failure=dumped)
            return
    step = result.get("model_step") or result.get("steps")
    current.end(trial, TrialState.COMPLETE, scores=scores, score_step=step)
