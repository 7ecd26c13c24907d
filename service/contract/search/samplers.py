"""`sampler` of a search: how the next values are chosen. Names and defaults are Optuna's."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from service.contract.section import SpecModel, rule

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
StartupTrials = Annotated[int, Field(ge=0, le=100_000)]


class _Sampler(SpecModel):
    seed: Seed = Field(
        0, description="The same seed and the same results give the same trials, in any search."
    )


class TpeSampler(_Sampler):
    """Tree-structured Parzen estimator (Bergstra et al. 2011; Watanabe 2023)."""

    name: Literal["tpe"] = "tpe"
    n_startup_trials: StartupTrials = Field(
        10, description="The first trials are random; from then on it learns from the results."
    )
    n_ei_candidates: int = Field(24, ge=1, le=10_000)
    multivariate: bool = Field(default=True, description="Consider all fields together.")
    group: bool = Field(
        default=False, description="Consider those fields together that occur together."
    )
    constant_liar: bool = Field(
        default=True, description="Keep away from the values of trials that still run."
    )
    prior_weight: float = Field(1.0, gt=0, le=1e6)

    @rule
    def groups_are_multivariate(self) -> Iterator[str]:
        if self.group and not self.multivariate:
            yield "`group` needs `multivariate: true`"


class RandomSampler(_Sampler):
    name: Literal["random"] = "random"


class GridSampler(_Sampler):
    """Every combination once, in an order that the seed decides."""

    name: Literal["grid"] = "grid"


class CmaEsSampler(_Sampler):
    """Covariance matrix adaptation (Hansen 2016). Numbers only: choices are random."""

    name: Literal["cmaes"] = "cmaes"
    sigma0: float | None = Field(None, gt=0, le=1e6)
    n_startup_trials: StartupTrials = 1
    popsize: int | None = Field(None, ge=4, le=10_000)
    consider_pruned_trials: bool = False


class QmcSampler(_Sampler):
    """Quasi-random sequences, more even than random ones (Bergstra and Bengio 2012)."""

    name: Literal["qmc"] = "qmc"
    qmc_type: Literal["sobol", "halton"] = "sobol"
    scramble: bool = False


class GpSampler(_Sampler):
    """Gaussian process, for few and expensive trials. The reconciler needs torch for it."""

    name: Literal["gp"] = "gp"
    n_startup_trials: StartupTrials = 10
    deterministic_objective: bool = False


class NsgaIISampler(_Sampler):
    """A genetic algorithm (Deb et al. 2002), for several objectives."""

    name: Literal["nsgaii"] = "nsgaii"
    population_size: int = Field(50, ge=2, le=10_000)
    mutation_prob: float | None = Field(None, ge=0, le=1)
    crossover_prob: float = Field(0.9, ge=0, le=1)
    swapping_prob: float = Field(0.5, ge=0, le=1)


SamplerSpec = (
    TpeSampler | RandomSampler | GridSampler | CmaEsSampler | QmcSampler | GpSampler | NsgaIISampler
)
