"""Optuna's samplers, as a search names them."""

import warnings
from collections.abc import Mapping
from typing import Any, Final

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    GPSampler,
    GridSampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from service.contract.search.samplers import SamplerSpec
from service.studies.cma_es import NumbersCmaEsSampler
from service.studies.parameters import Parameter

_SAMPLERS: Final[Mapping[str, type[BaseSampler]]] = {
    "tpe": TPESampler,
    "random": RandomSampler,
    "grid": GridSampler,
    "cmaes": NumbersCmaEsSampler,
    "qmc": QMCSampler,
    "gp": GPSampler,
    "nsgaii": NSGAIISampler,
}
# Else a line in the log for each field of each trial that has choices or a condition.
_QUIET: Final = {"warn_independent_sampling": False}
_TALKATIVE: Final = frozenset({"cmaes", "qmc", "gp"})


def make_sampler(spec: SamplerSpec, parameters: Mapping[str, Parameter]) -> BaseSampler:
    options: dict[str, Any] = spec.model_dump(exclude={"name"})
    if spec.name == "grid":
        options["search_space"] = {path: each.grid() for path, each in parameters.items()}
    if spec.name in _TALKATIVE:
        options |= _QUIET
    with warnings.catch_warnings():
        # Options that Optuna calls experimental or will drop in version 6. The version is pinned,
        # and the tests compare with the same one.
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return _SAMPLERS[spec.name](**options)
