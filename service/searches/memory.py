"""What a reconciler remembers of a search between two passes: the history at one version.

It can be dropped at any time: SQL has everything that it is made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.contract.fields.section import Acceptance
from service.contract.search import defaults, resources
from service.contract.search.pruners import AshaPruner, HyperbandPruner
from service.contract.search.samplers import GridSampler
from service.contract.search.spec import SearchSpec
from service.contract.search.states import TrialState
from service.store.searches import state
from service.studies.best import Best
from service.studies.halving import Halving
from service.studies.history import Trial

if TYPE_CHECKING:
    from service.searches.plan import Origin
    from service.store.searches.trials import Stored
    from service.studies.study import Study

Refusals = Callable[[Any, SearchSpec | None], list[str]]
"""Why a job's spec is refused, also as a trial of this search if there is one, in the sentences of
the API."""


@dataclass(frozen=True)
class First:
    """A trial to begin with: some values are fixed, the sampler chooses the others."""

    origin: Origin
    values: dict[str, Any]


class Memory:
    def __init__(self, stored: Stored, refusals: Refusals) -> None:
        # Imported late: Optuna takes a second, and most reconcilers have no search.
        from service.studies.study import Study

        row = stored.row
        self.version = row.version
        self.refusals = refusals
        self.given = row.spec
        self.spec = SearchSpec.model_validate(row.spec, context=Acceptance())
        self.firsts = _firsts(self.spec)
        self.trials = state.as_history(stored.trials, stored.reports)
        self.job_ids = {trial.number: trial.job_id for trial in stored.trials}
        self.failure_codes = {
            trial.number: trial.failure["code"]
            for trial in stored.trials
            if trial.failure is not None
        }
        self.held = {trial.number for trial in stored.trials if trial.is_held}
        self.best = Best(self.spec.objectives)
        ends = sorted(stored.trials, key=lambda trial: trial.end_number or 0)
        for ended in ends:
            if ended.state == TrialState.COMPLETE:
                self.best.add(self.trials[ended.number])
        self.ended = sum(trial.end_number is not None for trial in stored.trials)
        self.reported = row.reported
        self.without_gain = row.without_gain
        self.study: Study = Study(
            self.spec.dimensions,
            self.spec.objectives,
            self.spec.sampler,
            self.spec.pruner,
            self.trials,
        )
        self.halving = _halving(self.spec, self.trials)

    def counts(self) -> dict[str, int]:
        return dict(Counter(trial.state.value for trial in self.trials))

    def first(self, number: int) -> First | None:
        """None: the sampler chooses all values of this trial."""
        return self.firsts[number] if number < len(self.firsts) else None


def _firsts(spec: SearchSpec) -> list[First]:
    template = defaults.template_values(spec.job, spec.dimensions)
    firsts = []
    # Only values that the sampler could have suggested: it learns from them.
    active = {
        path: template[path]
        for path, dimension in spec.dimensions.items()
        if dimension.is_met(template)
    }
    # A grid has them already.
    is_wanted = spec.template_trial and not isinstance(spec.sampler, GridSampler)
    if is_wanted and all(spec.dimensions[path].holds(value) for path, value in active.items()):
        firsts.append(First("template", active))
    return [*firsts, *(First("enqueued", values) for values in spec.enqueue)]


def _halving(spec: SearchSpec, trials: list[Trial]) -> Halving | None:
    if not isinstance(spec.pruner, AshaPruner | HyperbandPruner):
        return None
    given = (spec.job.training, spec.dimensions, spec.pruner.unit)
    total, every = resources.total(*given), resources.every(*given)
    halving = Halving(spec.pruner, total, spec.objectives[0].goal, every)
    for trial in trials:
        halving.add(trial)
    return halving
