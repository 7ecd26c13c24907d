"""One pass over a search: what is known, what has been decided so far, and how trials end."""

from typing import Any, Final

from service.contract.failures import Failure, FailureCode
from service.contract.search.pruners import NoPruner
from service.contract.search.spec import SearchSpec
from service.contract.search.states import TrialState
from service.contract.states import ENDED, HELD, JobState
from service.searches.memory import Memory
from service.searches.plan import Plan
from service.store.database import jsonable
from service.store.jobs.state import CANCELLED
from service.store.searches.trials import Facts
from service.studies.history import Trial

OCCUPIES: Final = frozenset(
    {JobState.QUEUED, JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING}
)
"""States of a job that take one of the `max_parallel` places."""


class Pass:
    """Decisions change the memory and the plan together."""

    def __init__(self, memory: Memory, facts: Facts) -> None:
        self.memory = memory
        self.facts = facts
        self.plan = Plan()
        self.state = JobState(facts.row.state)
        self.jobs = dict(facts.jobs)
        """Jobs of trials that are not over, as they are with the decisions so far."""

    @property
    def spec(self) -> SearchSpec:
        return self.memory.spec

    @property
    def unit(self) -> str:
        """The unit of the resources of reports."""
        pruner = self.spec.pruner
        return "steps" if isinstance(pruner, NoPruner) else pruner.unit

    def live_trials(self) -> list[Trial]:
        """Those that were not over when the pass began, and those that it has made."""
        made = [self.memory.trials[trial.number] for trial in self.plan.made]
        return [self.memory.trials[number] for number in self.facts.jobs] + made

    def end(
        self, trial: Trial, state: TrialState, *, scores: list[float] | None = None, **columns: Any
    ) -> None:
        """The trial is over. `columns`: others of its row."""
        memory = self.memory
        memory.study.end(trial.number, state, scores)
        if memory.halving is not None:
            memory.halving.end(trial.number)
        memory.ended += 1
        self.plan.change(
            trial.number,
            state=state,
            scores=jsonable(scores),
            ended_at=self.facts.now,
            end_number=memory.ended,
            is_held=False,
            **columns,
        )
        if state is TrialState.COMPLETE and memory.best.add(trial):
            memory.without_gain = 0
        elif state in (TrialState.COMPLETE, TrialState.PRUNED):
            memory.without_gain += 1

    def prune(self, trial: Trial, reason: str) -> None:
        self.end(trial, TrialState.PRUNED, reason=reason)
        message = f"Trial {trial.number} of {self.facts.row.id} was ended early: {reason}."
        self.cancel_job(trial.number, Failure.from_code(FailureCode.TRIAL_PRUNED, message))

    def prune_paused(self, trial: Trial) -> None:
        """Prune a trial that is paused at a rung."""
        level, value = list(trial.reports.items())[-1]
        metric, unit = self.spec.objectives[0].key, self.unit.removesuffix("s")
        self.prune(
            trial, f"{metric} {value:.4g} at the rung of {unit} {level} is not among the best"
        )

    def pause_job(self, number: int) -> None:
        """Pause the job of a trial unless it has ended; likewise the next two."""
        job_id = self._set_job_state(number, JobState.PAUSED, while_held=JobState.PAUSING)
        self.plan.pause += [job_id] if job_id else []

    def resume_job(self, number: int) -> None:
        job_id = self._set_job_state(number, JobState.QUEUED, while_held=JobState.RUNNING)
        self.plan.resume += [job_id] if job_id else []

    def cancel_job(self, number: int, reason: Failure = CANCELLED) -> None:
        job_id = self._set_job_state(number, JobState.CANCELLED, while_held=JobState.CANCELLING)
        self.plan.cancel += [(job_id, reason)] if job_id else []

    def _set_job_state(self, number: int, state: JobState, *, while_held: JobState) -> str | None:
        """Note what state the job of a trial will be in; its id, or None if it has ended."""
        job = self.jobs.get(number)
        if job is None or job.state in (None, *ENDED):
            return None
        self.jobs[number] = job._replace(state=while_held if job.state in HELD else state)
        return job.job_id

    def fail(self, failure: Failure) -> None:
        """End the search as failed; none of its jobs runs any more."""
        self.plan.to = JobState.FAILED
        self.plan.search["failure"] = failure.model_dump(mode="json")
