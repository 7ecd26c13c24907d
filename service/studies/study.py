"""A search's next trial: Optuna's samplers as a function of the search's history."""

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from random import Random
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState as OptunaState

from service.contract.search.objectives import Objective
from service.contract.search.pruners import MedianPruner, PatiencePruner, PrunerSpec
from service.contract.search.samplers import GridSampler, SamplerSpec
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies.history import Trial
from service.studies.optuna_study import STATES, OptunaStudy
from service.studies.parameters import parameters_of
from service.studies.samplers import make_sampler


class GridExhaustedError(Exception):
    """Every combination of the grid has had its trial."""


class Study:
    """What it answers follows from `trials`, which it keeps up to date, and the sampler's seed: one
    that is made anew from the same trials answers the same.

    After an exception it must be made anew.
    """

    def __init__(
        self,
        space: Mapping[str, Dimension],
        objectives: Sequence[Objective],
        sampler: SamplerSpec,
        pruner: PrunerSpec,
        trials: list[Trial],
    ) -> None:
        self.trials = trials
        self._parameters = parameters_of(space)
        self._objectives = objectives
        self._sampler = sampler
        self._pruner = _optunas(pruner)
        self._made: OptunaStudy | None = None

    @property
    def _study(self) -> OptunaStudy:
        """Optuna's, with the same trials. It is kept, because it takes 0.1 ms for each trial."""
        if self._made is None:
            self._made = OptunaStudy(self._parameters, self._objectives, self.trials, self._pruner)
        return self._made

    def ask(self, fixed: Mapping[str, Any] | None = None) -> Trial:
        """The next trial, with these values, by path; the sampler suggests the others.

        With a grid, `fixed` must have all fields; and a grid comes to an end: `GridExhaustedError`.
        """
        number, attrs = len(self.trials), {}
        if not fixed and isinstance(self._sampler, GridSampler):
            if self.is_exhausted:
                raise GridExhaustedError
            attrs["grid_id"] = self._given
            fixed = self._grid[self._given]
        with _warnings_ignored():
            self._study.sampler = make_sampler(self._sampler, self._parameters, number)
            if fixed:
                self._study.enqueue_trial(self._to_optuna(fixed))
            asked = self._study.ask()
            values = self._suggest(asked)
        attrs |= self._study.get_trials()[number].system_attrs
        self.trials.append(Trial(number, values, attrs=attrs))
        return self.trials[number]

    def report(self, number: int, resource: int, value: float) -> None:
        """Of several reports at one resource the first one counts."""
        if resource not in self.trials[number].reports:
            self._study.report(number, resource, value)
            self.trials[number].reports[resource] = value

    def should_prune(self, number: int) -> bool:
        """As Optuna's own pruner says; never with `asha` and `hyperband`, which are not its."""
        return self._pruner.prune(self._study, self._study.get_trials()[number])

    def end(self, number: int, state: TrialState, scores: Sequence[float] | None = None) -> None:
        """The trial is over or paused. One that was paused may come to another end later."""
        trial = self.trials[number]
        if STATES[trial.state] == OptunaState.RUNNING:
            self._study.tell(number, scores, STATES[state])
        elif STATES[trial.state] != STATES[state]:
            self._made = None
        trial.state = state
        trial.scores = None if scores is None else list(scores)

    def resume(self, number: int) -> None:
        """A paused trial runs again, which Optuna cannot express."""
        self.trials[number].state = TrialState.RUNNING
        self._made = None

    @property
    def is_exhausted(self) -> bool:
        """Whether every combination of the grid has had its trial."""
        return isinstance(self._sampler, GridSampler) and self._given == len(self._grid)

    @cached_property
    def _grid(self) -> list[dict[str, Any]]:
        """Every combination, in the order that the seed decides."""
        values = (parameter.grid() for parameter in self._parameters.values())
        found = [
            dict(zip(self._parameters, each, strict=True)) for each in itertools.product(*values)
        ]
        Random(self._sampler.seed).shuffle(found)
        return found

    @property
    def _given(self) -> int:
        """How many combinations of the grid have had their trials."""
        return sum("grid_id" in trial.attrs for trial in self.trials)

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
                values[path] = parameter.suggested(asked)
        return values


def _optunas(pruner: PrunerSpec) -> optuna.pruners.BasePruner:
    """For `asha` and `hyperband`, which pause trials as Optuna cannot, one that prunes nothing.

    Optuna's samplers do not see the brackets of Hyperband either: since its version 5 they ask the
    study for all trials (`_get_trials`), and a bracket's study hides the others from `get_trials`
    only. A test holds this.
    """
    match pruner:
        case MedianPruner():
            return optuna.pruners.MedianPruner(
                pruner.n_startup_trials,
                n_warmup_steps=pruner.n_warmup,
                n_min_trials=pruner.n_min_trials,
            )
        case PatiencePruner():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                return optuna.pruners.PatientPruner(None, pruner.patience, pruner.min_delta)
        case _:
            return optuna.pruners.NopPruner()


@contextmanager
def _warnings_ignored() -> Iterator[None]:
    """Of infinite scores."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Clip non-finite values")
        yield
