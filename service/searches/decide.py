"""Decides what follows for a search from what its trials' jobs have done; writes nothing."""

import math
from datetime import timedelta
from typing import Any, Final

from service.contract.failures import Failure, FailureCode
from service.contract.search.pruners import MedianPruner, NoPruner, PatiencePruner
from service.contract.search.spec import KeepBest, PublishBest, RefitBest
from service.contract.search.states import TrialState
from service.contract.states import ENDED, HELD, JobState, Stage
from service.searches import trial_specs
from service.searches.failing import shared_failure
from service.searches.memory import Memory
from service.searches.plan import NewReport, NewTrial, Plan, Refit
from service.store.jobs import CANCELLED, jsonable, new_job_id
from service.store.search_trials import Evaluated, Facts, TrialJob
from service.studies.history import Trial

MOST_NEW: Final = 16
"""Trials made in one look, where specs refuse one after the other."""
_OCCUPIES: Final = frozenset(
    {JobState.QUEUED, JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING}
)
"""States of a job that take one of the `max_parallel` places."""


def decide(memory: Memory, facts: Facts) -> Plan:
    """What to write. The memory is then as after the write, and must be dropped if that fails."""
    return _Look(memory, facts).plan


class _Look:
    def __init__(self, memory: Memory, facts: Facts) -> None:
        self._memory = memory
        self._facts = facts
        self._spec = memory.spec
        self.plan = Plan()
        self._state = JobState(facts.row.state)
        self._jobs = dict(facts.jobs)
        self._has_changed_the_sampler = False
        self._observe()
        self._note_ends()
        failure = shared_failure(memory, facts, self.plan)
        if failure is not None and self._state is not JobState.CANCELLING:
            self._fail(failure)
        else:
            self._follow()
        self._note_totals()

    def _follow(self) -> None:
        match self._state:
            case JobState.QUEUED | JobState.RUNNING:
                self._go_on()
            case JobState.PAUSING | JobState.PAUSED:
                self._pause()
            case JobState.CANCELLING:
                self._cancel()

    # ---- what the jobs have done ----------------------------------------------------------------

    def _observe(self) -> None:
        for evaluated in self._facts.evaluations:
            trial = self._memory.trials[evaluated.number]
            if trial.state is not TrialState.RUNNING:
                continue  # paused by an earlier evaluation of this look
            value = self._value(evaluated)
            if value is not None:
                self._report(trial, evaluated, value)
            if trial.state is TrialState.RUNNING:
                self.plan.change(trial.number, seen_metrics=evaluated.seq)

    def _value(self, evaluated: Evaluated) -> float | None:
        """None with several objectives, which no pruner compares, or without the metric."""
        if len(self._spec.objectives) != 1:
            return None
        key = self._spec.objectives[0].key
        found = evaluated.values.get(key, evaluated.values.get(key.removeprefix("eval_")))
        return None if found is None else float(found)

    def _report(self, trial: Trial, evaluated: Evaluated, value: float) -> None:
        if self._memory.halving is not None:
            self._report_rungs(trial, evaluated, value)
            return
        resource = evaluated.step
        if self._unit() == "epochs":
            resource = round(evaluated.epoch or 0)
        if resource in trial.reports:
            return
        self._memory.study.report(trial.number, resource, value)
        trial.reports[resource] = value
        is_pruned = isinstance(self._spec.pruner, MedianPruner | PatiencePruner) and (
            self._memory.study.should_prune(trial.number)
        )
        self._add_report(evaluated, resource, value, "prune" if is_pruned else "continue")
        if is_pruned:
            self._prune(trial, self._why_pruned(resource, value))

    def _unit(self) -> str:
        pruner = self._spec.pruner
        return "steps" if isinstance(pruner, NoPruner) else pruner.unit

    def _report_rungs(self, trial: Trial, evaluated: Evaluated, value: float) -> None:
        halving = self._memory.halving
        assert halving is not None
        resource = evaluated.epoch or 0.0 if self._unit() == "epochs" else evaluated.step
        verdict = halving.report(trial.number, resource, value)
        for level in verdict.levels:
            self._memory.study.report(trial.number, level, value)
            trial.reports[level] = value
            pauses = verdict.pauses and level == verdict.levels[-1]
            self._add_report(evaluated, level, value, "pause" if pauses else "continue")
        if verdict.pauses:
            trial.state = TrialState.PAUSED
            self._memory.study.end(trial.number, TrialState.PAUSED, None)
            # The same evaluation may have reached further rungs: it is read again when the trial
            # continues.
            self.plan.change(trial.number, state=trial.state, seen_metrics=evaluated.seq - 1)
            self._stop(trial.number, pause=True)

    def _add_report(self, evaluated: Evaluated, resource: int, value: float, decision: Any) -> None:
        self._memory.reported += 1
        self.plan.reports.append(
            NewReport(evaluated.number, resource, evaluated.step, value, decision, evaluated.at)
        )

    def _why_pruned(self, resource: int, value: float) -> str:
        metric = self._spec.objectives[0].key
        at = f"{metric} {value:.4g} at {self._unit().removesuffix('s')} {resource}"
        if isinstance(self._spec.pruner, PatiencePruner):
            return f"{at}: no gain in {self._spec.pruner.patience} evaluations"
        return f"{at}: its best so far is worse than the median of the finished trials there"

    # ---- ends -----------------------------------------------------------------------------------

    def _note_ends(self) -> None:
        for job in self._facts.jobs.values():
            trial = self._memory.trials[job.number]
            is_gone = job.state is None or job.state in ENDED
            if trial.state is TrialState.RUNNING and is_gone:
                self._note_end(trial, job)

    def _note_end(self, trial: Trial, job: TrialJob) -> None:
        if job.state is JobState.SUCCEEDED:
            self._complete(trial, job)
        elif job.state is JobState.FAILED:
            self._end(trial, TrialState.FAILED, reason=_message(job), failure=job.failure)
        else:
            reason = "its job was deleted" if job.state is None else "its job was cancelled"
            self._end(trial, TrialState.CANCELLED, reason=reason)

    def _complete(self, trial: Trial, job: TrialJob) -> None:
        result = job.results.get(Stage.TRAIN, {})
        metrics = result.get("metrics", {})
        keys = [objective.key for objective in self._spec.objectives]
        scores = [float(metrics.get(key, "nan")) for key in keys]
        for key, score in zip(keys, scores, strict=True):
            if math.isnan(score):
                what = "is not a number" if key in metrics else "was not reported"
                failure = Failure.of(FailureCode.INVALID_OPTION, f"`{key}` {what} at its end.")
                told = failure.model_dump(mode="json")
                self._end(trial, TrialState.FAILED, reason=failure.message, failure=told)
                return
        step = result.get("model_step") or result.get("steps")
        self._end(trial, TrialState.COMPLETE, scores=scores, score_step=step)

    def _end(
        self,
        trial: Trial,
        state: TrialState,
        *,
        scores: list[float] | None = None,
        **columns: Any,
    ) -> None:
        was_paused = trial.state is TrialState.PAUSED
        trial.state, trial.scores = state, scores
        if not (was_paused and state is TrialState.PRUNED):  # that is what Optuna has it for
            self._memory.study.end(trial.number, state, scores)
        if self._memory.halving is not None:
            self._memory.halving.end(trial.number)
        self._memory.ended += 1
        self.plan.change(
            trial.number,
            state=state,
            scores=jsonable(scores),
            ended_at=self._facts.now,
            end_number=self._memory.ended,
            is_held=False,
            **columns,
        )
        if state is TrialState.COMPLETE and self._memory.best.add(trial):
            self._memory.without_gain = 0
        elif state in (TrialState.COMPLETE, TrialState.PRUNED):
            self._memory.without_gain += 1

    def _prune(self, trial: Trial, reason: str) -> None:
        self._end(trial, TrialState.PRUNED, reason=reason)
        failure = Failure.of(
            FailureCode.TRIAL_PRUNED,
            f"Trial {trial.number} of {self._facts.row.id} was ended early: {reason}.",
        )
        self._stop(trial.number, pause=False, failure=failure)

    def _stop(self, number: int, *, pause: bool, failure: Failure = CANCELLED) -> None:
        """Pause or cancel the job of a trial, unless it has ended."""
        job = self._jobs.get(number)
        if job is None or job.job_id is None or job.state is None or job.state in ENDED:
            return
        if pause:
            self.plan.pause.append(job.job_id)
        else:
            self.plan.cancel.append((job.job_id, failure))
        if job.state in HELD:
            state = JobState.PAUSING if pause else JobState.CANCELLING
        else:
            state = JobState.PAUSED if pause else JobState.CANCELLED
        self._jobs[number] = job._replace(state=state)

    # ---- what follows ---------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._facts.row.outcome is not None:
            self._follow_outcome()
            return
        self._continue_held()
        self._end_hopeless()
        self._fill()
        if not self._is_busy() and not self._may_make_more():
            self._conclude()

    def _continue_held(self) -> None:
        """The search was paused, and goes on."""
        for number in sorted(self._memory.held):
            job = self._jobs.get(number)
            if job is not None and job.job_id is not None:
                self.plan.resume.append(job.job_id)
                self._jobs[number] = job._replace(state=JobState.QUEUED)
            self.plan.change(number, is_held=False)
        self._memory.held.clear()

    def _is_busy(self) -> bool:
        return any(trial.state is TrialState.RUNNING for trial in self._live())

    def _live(self) -> list[Trial]:
        made = [self._memory.trials[trial.number] for trial in self.plan.made]
        return [self._memory.trials[number] for number in self._facts.jobs] + made

    def _may_make_more(self) -> bool:
        return (
            len(self._memory.trials) < self._facts.row.max_trials
            and not self._memory.study.is_exhausted
            and not self._is_over()
        )

    def _is_over(self) -> bool:
        """Whether nothing begins any more, new or promoted."""
        limit = self._spec.stop_after_trials_without_gain
        if limit is not None and self._memory.without_gain >= limit:
            return True
        seconds, begun = self._spec.timeout_seconds, self._facts.row.started_at
        if seconds is None or begun is None:
            return False
        return self._facts.now >= begun + timedelta(seconds=seconds)

    def _next_promoted(self) -> int | None:
        """A paused trial that is to continue, and runs from now on."""
        if self._memory.halving is None or self._is_over():
            return None
        return self._memory.halving.promote()

    def _end_hopeless(self) -> None:
        """Paused trials that cannot be among the best any more make room on the disk."""
        if self._memory.halving is None:
            return
        to_come = self._facts.row.max_trials - len(self._memory.trials)
        for number in self._memory.halving.hopeless(to_come):
            trial = self._memory.trials[number]
            self._prune(trial, self._why_lost(trial))

    def _why_lost(self, trial: Trial) -> str:
        level, value = list(trial.reports.items())[-1]
        metric = self._spec.objectives[0].key
        unit = self._unit().removesuffix("s")
        return f"{metric} {value:.4g} at the rung of {unit} {level} is not among the best"

    def _fill(self) -> None:
        """Make or promote trials while there is a free place. At most one waits for a worker, so
        that the jobs of others are never behind many trials."""
        for _ in range(MOST_NEW):
            # Those of pruned trials, too, until they have stopped.
            states = [job.state for job in self._jobs.values()]
            busy = sum(state in _OCCUPIES for state in states) + len(self._facts.live)
            if busy >= self._spec.max_parallel or JobState.QUEUED in states:
                return
            promoted = self._next_promoted()
            if promoted is not None:
                self._promote(promoted)
            elif self._may_make_more():
                self._make()
            else:
                return

    def _promote(self, number: int) -> None:
        trial, job = self._memory.trials[number], self._jobs.get(number)
        trial.state = TrialState.RUNNING
        self._memory.study.resume(number)
        self._has_changed_the_sampler = True
        self.plan.change(number, state=TrialState.RUNNING)
        if job is not None and job.job_id is not None and job.state not in (None, *ENDED):
            self.plan.resume.append(job.job_id)
            self._jobs[number] = job._replace(state=JobState.QUEUED)

    def _make(self) -> None:
        memory, number = self._memory, len(self._memory.trials)
        first = memory.first(number)
        trial = memory.study.ask(None if first is None else first.values)
        self._has_changed_the_sampler = True
        memory.trials.append(trial)
        origin = "sampled" if first is None else first.origin
        made: dict[str, Any] = {"values": trial.values, "attrs": trial.attrs, "origin": origin}
        if memory.halving is not None:
            memory.halving.add(trial)
        try:
            spec = trial_specs.of_trial(memory.given, number, trial.values)
        except trial_specs.RefusedError as error:
            self.plan.made.append(NewTrial(number, **made, job_id=None, spec=None))
            refused = error.failure
            failure = refused.model_dump(mode="json")
            self._end(trial, TrialState.FAILED, reason=refused.message, failure=failure)
            return
        job_id = new_job_id()
        self.plan.made.append(NewTrial(number, **made, job_id=job_id, spec=spec))
        memory.job_ids[number] = job_id
        self._jobs[number] = TrialJob(number, job_id, JobState.QUEUED, Stage.PREPARE, 0, None, {})

    def _conclude(self) -> None:
        """No trial runs, and none will: the paused ones have lost."""
        for trial in self._live():
            if trial.state is TrialState.PAUSED:
                self._prune(trial, self._why_lost(trial))
        if self.plan.cancel or self._facts.live:
            return  # until their jobs have ended
        numbers = self._memory.best.numbers
        if not numbers:
            self._to_failed(_nothing_finished(self._memory))
            return
        self._use_best(numbers[0])

    def _use_best(self, number: int) -> None:
        job_id = self._memory.job_ids[number]
        match self._spec.best:
            case KeepBest():
                self.plan.to = JobState.SUCCEEDED
            case PublishBest() if job_id is not None:
                self.plan.publish = job_id
                self.plan.search["outcome"] = {"action": "publish", "job_id": job_id}
            case RefitBest() as best:
                values = self._memory.trials[number].values
                try:
                    spec = trial_specs.of_refit(self._memory.given, best, values)
                except trial_specs.RefusedError as error:
                    self._to_failed(error.failure)
                    return
                refit = Refit(new_job_id(), spec)
                self.plan.refit = refit
                self.plan.search["outcome"] = {"action": "refit", "job_id": refit.job_id}

    def _follow_outcome(self) -> None:
        state, failure = self._facts.outcome_state, self._facts.outcome_failure
        outcome = self._facts.row.outcome or {}
        if state is JobState.SUCCEEDED:
            self.plan.to = JobState.SUCCEEDED
        elif state is None or state in ENDED:
            reason = "was deleted" if state is None else f"is {state}"
            given = None if failure is None else Failure.model_validate(failure)
            self._to_failed(
                given
                or Failure.of(
                    FailureCode.CANCELLED,
                    f"The job that was to {outcome.get('action')} the best trial {reason}.",
                    action="The best trial is kept: see `finetune search best`.",
                )
            )

    def _to_failed(self, failure: Failure) -> None:
        self.plan.to = JobState.FAILED
        self.plan.search["failure"] = failure.model_dump(mode="json")

    def _fail(self, failure: Failure) -> None:
        """End everything that still runs first."""
        self.plan.search["failure"] = failure.model_dump(mode="json")
        self._cancel()

    # ---- what the user asked for ----------------------------------------------------------------

    def _pause(self) -> None:
        for number, job in self._jobs.items():
            if (
                self._memory.trials[number].state is TrialState.RUNNING
                and job.job_id is not None
                and job.state in (JobState.QUEUED, JobState.RUNNING)
            ):
                self._stop(number, pause=True)
                self._memory.held.add(number)
                self.plan.change(number, is_held=True)
        held = any(job.state in _OCCUPIES for job in self._facts.jobs.values())
        if self._state is JobState.PAUSING and not held and not self.plan.pause:
            self.plan.to = JobState.PAUSED

    def _cancel(self) -> None:
        for number in list(self._facts.jobs):
            trial = self._memory.trials[number]
            if trial.state in (TrialState.RUNNING, TrialState.PAUSED):
                self._end(trial, TrialState.CANCELLED, reason="the search was ended")
                self._stop(number, pause=False)
        outcome = self._facts.row.outcome
        if outcome is not None and self._facts.outcome_state not in (None, *ENDED):
            self.plan.cancel.append((outcome["job_id"], CANCELLED))
        if self._state is not JobState.CANCELLING:
            self.plan.to = JobState.CANCELLING if self._state is not JobState.QUEUED else None
        elif not self.plan.cancel and not self._facts.live:
            failed = self._facts.row.failure is not None
            self.plan.to = JobState.FAILED if failed else JobState.CANCELLED

    # ---- totals ---------------------------------------------------------------------------------

    def _note_totals(self) -> None:
        plan, memory, row = self.plan, self._memory, self._facts.row
        if self._state is JobState.QUEUED and plan.made and plan.to is None:
            plan.to = JobState.RUNNING
        if plan.is_empty:
            return
        if plan.made and row.started_at is None:
            plan.search["started_at"] = self._facts.now
        plan.search |= {
            "made": len(memory.trials),
            "reported": memory.reported,
            "counts": memory.counts(),
            "best": memory.best.numbers,
            "best_scores": jsonable(memory.best.scores),
            "without_gain": memory.without_gain,
            "waiting": None,
        }
        if self._has_changed_the_sampler:
            plan.search["study_state"] = memory.study.state()


def _message(job: TrialJob) -> str:
    return str((job.failure or {}).get("message", "its job failed"))


def _nothing_finished(memory: Memory) -> Failure:
    failed = [trial for trial in memory.trials if trial.state is TrialState.FAILED]
    return Failure.of(
        FailureCode.INVALID_OPTION,
        f"None of the {len(memory.trials)} trials has finished; {len(failed)} failed.",
        action="See why with `finetune search trials`, change the spec, and submit it again.",
    )
