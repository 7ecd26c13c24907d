"""Optuna's own study object, made from a search's history."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import RandomSampler
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from service.contract.search.objectives import Objective
from service.contract.search.states import TrialState
from service.studies.history import Trial
from service.studies.parameters import Parameter

# Through the service's own handler, which masks secrets; Optuna's writes to stderr itself.
optuna.logging.set_verbosity(optuna.logging.WARNING)
optuna.logging.disable_default_handler()
optuna.logging.enable_propagation()

_NAME: Final = "search"
"""The same for all searches: no suggestion may depend on it."""

STATES: Final = {
    TrialState.RUNNING: OptunaState.RUNNING,
    # It ended, with what it reported; Optuna has no state for one that may continue.
    TrialState.PAUSED: OptunaState.PRUNED,
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.FAILED: OptunaState.FAIL,
    TrialState.CANCELLED: OptunaState.FAIL,
}


class OptunaStudy(optuna.Study):
    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        objectives: Sequence[Objective],
        trials: Iterable[Trial],
        pruner: BasePruner | None = None,
    ) -> None:
        self.storage = InMemoryStorage()
        directions = [StudyDirection[objective.goal.upper()] for objective in objectives]
        self.id = self.storage.create_new_study(directions, _NAME)
        super().__init__(_NAME, self.storage, RandomSampler(seed=0), pruner or NopPruner())
        for trial in trials:
            self.add_trial(_frozen(trial, parameters))

    def get_trials(
        self,
        deepcopy: bool = True,  # noqa: FBT001, FBT002, ARG002
        states: Container[OptunaState] | None = None,
    ) -> list[FrozenTrial]:
        """Never copies: Optuna's figures copy all trials for each field, and change none."""
        return super().get_trials(deepcopy=False, states=states)

    def report(self, number: int, resource: int, value: float) -> None:
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(self.id, number)
        self.storage.set_trial_intermediate_value(trial_id, resource, value)


def _frozen(trial: Trial, parameters: Mapping[str, Parameter]) -> FrozenTrial:
    # Not in the order of `values`: a database may have changed it, and samplers depend on it.
    active = [parameter for path, parameter in parameters.items() if path in trial.values]
    return create_trial(
        state=STATES[trial.state],
        values=_values(trial),
        params={p.path: p.to_optuna(trial.values[p.path]) for p in active},
        distributions={p.path: p.distribution for p in active},
        intermediate_values={step: float(value) for step, value in trial.reports.items()},
        system_attrs=dict(trial.attrs),
    )


def _values(trial: Trial) -> list[float] | None:
    """The scores; of a pruned trial its last report, as Optuna has it."""
    if trial.state == TrialState.COMPLETE:
        if trial.scores is None:
            raise ValueError(f"trial {trial.number} is complete and has no scores")
        return [float(score) for score in trial.scores]
    if STATES[trial.state] == OptunaState.PRUNED and trial.reports:
        last = float(trial.reports[max(trial.reports)])
        return None if math.isnan(last) else [last]
    return None
