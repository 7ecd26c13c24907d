"""Optuna's own study object, made from a search's history."""

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler, GridSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from service.contract.search.objectives import Objective
from service.contract.search.states import TrialState
from service.studies.history import Trial
from service.studies.parameters import Parameter
from service.studies.trial_storage import TrialStorage

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
    def stop(self) -> None:
        """Samplers of a grid end the loop of `optimize` with it; there is no loop here."""

    def get_trials(
        self,
        deepcopy: bool = True,  # noqa: FBT001, FBT002, ARG002
        states: Container[OptunaState] | None = None,
    ) -> list[FrozenTrial]:
        """Never copies: Optuna's figures copy all trials for each field, and change none."""
        return super().get_trials(deepcopy=False, states=states)


def optuna_study(
    parameters: Mapping[str, Parameter],
    objectives: Sequence[Objective],
    trials: Sequence[Trial],
    sampler: BaseSampler | None = None,
    pruner: BasePruner | None = None,
) -> OptunaStudy:
    sampler = sampler or RandomSampler(seed=0)
    storage = TrialStorage()
    directions = [StudyDirection[objective.goal.upper()] for objective in objectives]
    study_id = storage.create_new_study(directions, _NAME)
    storage.fill(study_id, (_frozen(trial, parameters, sampler) for trial in trials))
    return OptunaStudy(_NAME, storage, sampler, pruner or NopPruner())


def attrs_of(trial: FrozenTrial) -> dict[str, Any]:
    """What Optuna noted about a trial, without what is the same for all: the whole grid."""
    return {name: value for name, value in trial.system_attrs.items() if name != "search_space"}


def _frozen(trial: Trial, parameters: Mapping[str, Parameter], sampler: BaseSampler) -> FrozenTrial:
    # Not in the order of `values`: a database may have changed it, and samplers look at it.
    active = [parameter for path, parameter in parameters.items() if path in trial.values]
    attrs = dict(trial.attrs)
    if isinstance(sampler, GridSampler) and "grid_id" in attrs:
        attrs["search_space"] = sampler._search_space
    return FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=STATES[trial.state],
        value=None,
        values=_values(trial),
        params={p.path: p.to_optuna(trial.values[p.path]) for p in active},
        distributions={p.path: p.distribution for p in active},
        intermediate_values={step: float(value) for step, value in trial.reports.items()},
        user_attrs={},
        system_attrs=attrs,
        # No sampler looks at the time, nor does any figure of ours.
        datetime_start=None,
        datetime_complete=None,
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
