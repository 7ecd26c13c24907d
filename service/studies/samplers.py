"""Optuna's samplers, as a search names them: a new one for each suggestion."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    GPSampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial

from service.contract.search.samplers import SamplerSpec
from service.studies.parameters import Parameter


def make_sampler(
    spec: SamplerSpec, parameters: Mapping[str, Parameter], number: int
) -> BaseSampler:
    """For trial `number` alone. A sampler that is kept draws random numbers that depend on every
    suggestion before, and a crash would lose where it was."""
    options: dict[str, Any] = spec.model_dump(exclude={"name", "seed"})
    # Different trials of one search, and equal trials of searches with different seeds, are
    # independent.
    seed = int(np.random.SeedSequence((spec.seed, number)).generate_state(1)[0])
    with warnings.catch_warnings():
        # Of options that Optuna calls experimental, or will drop in version 6.
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.simplefilter("ignore", FutureWarning)
        match spec.name:
            case "qmc":
                return _NumberedQMCSampler(parameters, spec.seed, RandomSampler(seed), options)
            case "nsgaii":
                return _HistoryNSGAIISampler(seed=seed, **options)
            case "gp":
                return GPSampler(seed=seed, warn_independent_sampling=False, **options)
            case "tpe":
                return TPESampler(seed=seed, **options)
            case _:
                return RandomSampler(seed)


class _NumberedQMCSampler(QMCSampler):
    """Trial n has point n of the sequence. Fields with a condition are random."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        seed: int,
        independent: BaseSampler,
        options: dict[str, Any],
    ) -> None:
        super().__init__(
            seed=seed,
            independent_sampler=independent,
            warn_independent_sampling=False,
            **options,
        )
        self._unconditional = {
            path: each.distribution
            for path, each in parameters.items()
            if each.dimension.when is None
        }

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return self._unconditional

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        # Optuna notes with the study which point was the last one. In a study of its own this
        # is the only note.
        storage = InMemoryStorage()
        sequence = optuna.create_study(storage=storage)
        study_id = storage.get_study_id_from_name(sequence.study_name)
        values = super().sample_relative(sequence, trial, search_space)
        if trial.number == 0:
            return values
        for note in storage.get_study_system_attrs(study_id):
            storage.set_study_system_attr(study_id, note, trial.number - 1)
        return super().sample_relative(sequence, trial, search_space)


class _HistoryNSGAIISampler(NSGAIISampler):
    """Finds the parents of a generation in the trials each time. Optuna notes them with the study
    when it first needs them, and trials of the generation before may end after that."""

    def get_parent_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        return self.select_parent(study, generation) if generation else []
