"""`sampler` of a search: how the next values are chosen. Names and defaults are Optuna's."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from service.contract.fields.section import SpecModel, rule

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
StartupTrials = Annotated[int, Field(ge=0, le=100_000)]


_FIRST_ARE_RANDOM: Final = "The first trials are random; from then on it learns from the results."


class _Sampler(SpecModel):
    seed: Seed = Field(
        0, description="The same seed and the same results give the same trials, in any search."
    )


class TpeSampler(_Sampler):
    """Tree-structured Parzen estimator (Bergstra et al. 2011; Watanabe 2023)."""

    name: Literal["tpe"] = "tpe"
    n_startup_trials: StartupTrials = Field(10, description=_FIRST_ARE_RANDOM)
    n_ei_candidates: int = Field(
        24, ge=1, le=10_000, description="Values that are drawn for a trial; the best one is tried."
    )
    multivariate: bool = Field(default=True, description="Consider all fields together.")
    group: bool = Field(
        default=False, description="Consider those fields together that occur together."
    )
    constant_liar: bool = Field(
        default=True, description="Keep away from the values of trials that still run."
    )
    prior_weight: float = Field(
        1.0,
        gt=0,
        le=1e6,
        description="How much an even spread over the whole space counts against the results.",
    )

    @rule
    def groups_are_multivariate(self) -> Iterator[str]:
        if self.group and not self.multivariate:
            yield "`group` needs `multivariate: true`"


class RandomSampler(_Sampler):
    """Each value by chance, whatever the results are (Bergstra and Bengio 2012)."""

    name: Literal["random"] = "random"


class GridSampler(_Sampler):
    """Every combination once, in an order that the seed decides."""

    name: Literal["grid"] = "grid"


class QmcSampler(_Sampler):
    """Quasi-random sequences, which fill the space more evenly than random values do."""

    name: Literal["qmc"] = "qmc"
    qmc_type: Literal["sobol", "halton"] = Field(
        "sobol", description="Sobol's sequence is most even where `max_trials` is a power of two."
    )
    scramble: bool = Field(
        default=False, description="Shift the sequence at random; `seed` decides how."
    )


class GpSampler(_Sampler):
    """Gaussian process, for few and expensive trials. The reconciler needs torch for it."""

    name: Literal["gp"] = "gp"
    n_startup_trials: StartupTrials = Field(10, description=_FIRST_ARE_RANDOM)
    deterministic_objective: bool = Field(
        default=False,
        description="Whether equal values give equal results, as with a fixed `training.seed`.",
    )


class NsgaIISampler(_Sampler):
    """A genetic algorithm (Deb et al. 2002), for several objectives."""

    name: Literal["nsgaii"] = "nsgaii"
    population_size: int = Field(
        50, ge=2, le=10_000, description="Trials of one generation; those of the first are random."
    )
    mutation_prob: float | None = Field(
        None,
        ge=0,
        le=1,
        examples=[0.1],
        description="Share of values that are drawn anew; default: 1 / fields.",
    )
    crossover_prob: float = Field(
        0.9, ge=0, le=1, description="Share of trials with two parents; the others have one."
    )
    swapping_prob: float = Field(
        0.5, ge=0, le=1, description="Share of values that come from the second parent."
    )


SamplerSpec = TpeSampler | RandomSampler | GridSampler | QmcSampler | GpSampler | NsgaIISampler
