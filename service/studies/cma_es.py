"""CMA-ES whose optimizer is kept as numbers."""

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from optuna._transform import _SearchSpaceTransform
from optuna.samplers import CmaEsSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from service.studies.packing import pack, unpack

if TYPE_CHECKING:
    # It loads scipy, which the other samplers do without.
    from cmaes import CMA

_KEY: Final = "cma:optimizer"


class NumbersCmaEsSampler(CmaEsSampler):
    """Optuna notes the optimizer with the trial that began a generation, as a pickle. What comes
    from a database is never unpickled here: the note has the numbers that a generation changes, and
    the rest is made as for a new optimizer."""

    _optimizer: "CMA"

    def _get_trials(self, study: Study) -> list[FrozenTrial]:
        """The trials to learn from, a pruned one by its last report. Optuna copies those with all
        that is in them, which takes 0.5 s for 10,000."""
        trials = study._get_trials(deepcopy=False, use_cache=True)
        if not self._consider_pruned_trials:
            return [trial for trial in trials if trial.state == TrialState.COMPLETE]
        return [_with_value(trial) for trial in trials if _teaches(trial)]

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> "CMA | None":
        for trial in reversed(completed_trials):
            if _KEY in trial.system_attrs:
                self._optimizer = _from_numbers(trial.system_attrs[_KEY], self._popsize)
                return self._optimizer
        return None

    def _init_optimizer(self, trans: _SearchSpaceTransform, direction: StudyDirection) -> "CMA":
        self._optimizer = super()._init_optimizer(trans, direction)
        return self._optimizer

    def _split_optimizer_str(self, optimizer_str: str) -> dict[str, Any]:  # noqa: ARG002
        """What Optuna notes instead of its pickle. It asks right after the optimizer changed."""
        return {_KEY: _to_numbers(self._optimizer)}


def _teaches(trial: FrozenTrial) -> bool:
    is_pruned = trial.state == TrialState.PRUNED
    return trial.state == TrialState.COMPLETE or (is_pruned and bool(trial.intermediate_values))


def _with_value(trial: FrozenTrial) -> FrozenTrial:
    if trial.state == TrialState.PRUNED:
        trial = copy(trial)
        trial.value = trial.intermediate_values[max(trial.intermediate_values)]
    return trial


def _to_numbers(optimizer: "CMA") -> dict[str, Any]:
    covariance: np.ndarray = optimizer._C
    return {
        "generation": optimizer.generation,
        "mean": pack(optimizer.mean),
        "sigma": pack(np.array([optimizer._sigma])),
        # The upper half, as the pickle has it: the lower one may differ in the last bit.
        "covariance": pack(covariance[np.triu_indices(len(covariance))]),
        "p_sigma": pack(optimizer._p_sigma),
        "pc": pack(optimizer._pc),
    }


def _from_numbers(numbers: dict[str, Any], popsize: int | None) -> "CMA":
    from cmaes import CMA

    mean = unpack(numbers["mean"])
    size = len(mean)
    optimizer = CMA(
        mean=np.full(size, 0.5),
        sigma=1.0,
        # Optuna scales all fields to this.
        bounds=np.array([[0.0, 1.0]] * size),
        n_max_resampling=10 * size,
        population_size=popsize,
    )
    optimizer._mean = mean
    optimizer._sigma = float(unpack(numbers["sigma"])[0])
    optimizer._C = _symmetric(unpack(numbers["covariance"]), size)
    optimizer._p_sigma = unpack(numbers["p_sigma"])
    optimizer._pc = unpack(numbers["pc"])
    optimizer._g = int(numbers["generation"])
    return optimizer


def _symmetric(upper: Sequence[float] | np.ndarray, size: int) -> np.ndarray:
    rows, columns = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = upper
    matrix[columns, rows] = upper
    return matrix
