"""A search's next trial: Optuna's samplers as a function of the search's history."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from optuna.samplers import GridSampler
from optuna.trial import FrozenTrial
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState as OptunaState

from service.contract.search.objectives import Objective
from service.contract.search.pruners import PrunerSpec
from service.contract.search.samplers import SamplerSpec
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies import sampler_state
from service.studies.history import Trial
from service.studies.optuna_study import STATES, attrs_of, optuna_study
from service.studies.parameters import parameters_of
from service.studies.pruners import make_pruner
from service.studies.samplers import make_sampler
from service.studies.trial_storage import TrialStorage


class GridExhaustedError(Exception):
    """Every combination of the grid has had its trial."""


class Study:
    """`Study(space, objectives, sampler, pruner, trials, study.state())` continues exactly as
    `study` would, where `trials` are those that it gave and heard of, as they are now.

    After an exception, and where what it answered was not kept, it must be made anew: a suggestion
    changes it.
    """

    def __init__(
        self,
        space: Mapping[str, Dimension],
        objectives: Sequence[Objective],
        sampler: SamplerSpec,
        pruner: PrunerSpec,
        trials: Sequence[Trial] = (),
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._parameters = parameters_of(space)
        self._sampler = make_sampler(sampler, self._parameters)
        self._study = optuna_study(
            self._parameters, objectives, trials, self._sampler, make_pruner(pruner)
        )
        if state is not None:
            sampler_state.restore(self._sampler, state["sampler"], self._parameters)
            for name, value in state["study"].items():
                self._storage.set_study_system_attr(self._study._study_id, name, value)

    def __len__(self) -> int:
        """How many trials there are; the next one's number."""
        return len(self._all())

    def state(self) -> dict[str, Any]:
        """As JSON, 7 kB for most samplers; only the last one is needed. `ask` and `resume` change
        it, reports and ends do not."""
        return {
            "sampler": sampler_state.save(self._sampler),
            "study": dict(self._storage.get_study_system_attrs(self._study._study_id)),
        }

    def ask(self, fixed: Mapping[str, Any] | None = None) -> Trial:
        """The next trial, with these values, by path; the sampler suggests the others.

        With a grid, `fixed` must have all fields; and a grid comes to an end: `GridExhaustedError`.
        """
        if fixed:
            self._study.enqueue_trial(self._to_optuna(fixed))
        elif self.is_exhausted:
            raise GridExhaustedError
        with _warnings_ignored():
            asked = self._study.ask()
            values = self._suggest(asked)
        attrs = attrs_of(self._storage.get_trial(asked.number))
        return Trial(asked.number, values, attrs=attrs)

    def report(self, number: int, resource: int, value: float) -> None:
        """Of several reports at one resource the first one counts."""
        if resource not in self._trial(number).intermediate_values:
            self._storage.set_trial_intermediate_value(number, resource, float(value))

    def should_prune(self, number: int) -> bool:
        """As Optuna's own pruner says; never with `asha` and `hyperband`, which are not its."""
        return self._study.pruner.prune(self._study, self._trial(number))

    def end(self, number: int, state: TrialState, scores: Sequence[float] | None = None) -> None:
        """The trial is over or paused. One that was paused may come to another end later."""
        if self._trial(number).state == OptunaState.PRUNED:
            self.resume(number)
        self._study.tell(number, scores, STATES[state])

    def resume(self, number: int) -> None:
        """A paused trial runs again."""
        self._storage.reopen(number)
        sampler_state.look_again_from(self._sampler, number)

    @property
    def _storage(self) -> TrialStorage:
        assert isinstance(self._study._storage, TrialStorage)
        return self._study._storage

    def _all(self) -> list[FrozenTrial]:
        return self._storage.get_all_trials(self._study._study_id, deepcopy=False)

    def _trial(self, number: int) -> FrozenTrial:
        return self._storage.get_trial(number)

    def _to_optuna(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        return {
            path: parameter.to_optuna(fixed[path])
            for path, parameter in self._parameters.items()
            if path in fixed
        }

    def _suggest(self, asked: OptunaTrial) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for path, parameter in self._parameters.items():
            if parameter.dimension.is_met(values):
                # Not `suggest_float`, which would make a distribution for each trial.
                suggested = asked._suggest(path, parameter.distribution)
                values[path] = parameter.from_optuna(suggested)
        return values

    @property
    def is_exhausted(self) -> bool:
        """Whether every combination of the grid has had its trial."""
        if not isinstance(self._sampler, GridSampler):
            return False
        given = {trial.system_attrs.get("grid_id") for trial in self._all()} - {None}
        return len(given) == len(self._sampler._all_grids)


@contextmanager
def _warnings_ignored() -> Iterator[None]:
    """Of values outside of the space, which a template may have, and of infinite scores."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Fixed parameter .* is out of range")
        warnings.filterwarnings("ignore", "Clip non-finite values")
        yield
