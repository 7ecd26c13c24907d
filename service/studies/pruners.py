"""Optuna's pruners for those of a search that compare reports only."""

import warnings

import optuna
from optuna.exceptions import ExperimentalWarning

from service.contract.search.pruners import MedianPruner, PatiencePruner, PrunerSpec


def make_pruner(spec: PrunerSpec) -> optuna.pruners.BasePruner:
    """For `asha` and `hyperband`, which pause trials as Optuna cannot, one that prunes nothing.

    Optuna's samplers do not see the brackets of Hyperband either: since its version 5 they ask the
    study for all trials (`_get_trials`), and a bracket's study hides the others from `get_trials`
    only. A test holds this.
    """
    match spec:
        case MedianPruner():
            return optuna.pruners.MedianPruner(
                spec.n_startup_trials,
                n_warmup_steps=spec.n_warmup,
                n_min_trials=spec.n_min_trials,
            )
        case PatiencePruner():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                return optuna.pruners.PatientPruner(None, spec.patience, spec.min_delta)
        case _:
            return optuna.pruners.NopPruner()
