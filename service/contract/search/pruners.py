"""`pruner` of a search: which trials stop early. Names and defaults are Optuna's where it has
them."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from service.contract.fields import bounds
from service.contract.fields.section import SpecModel, rule

Unit = Literal["steps", "epochs"]
Resource = Annotated[int, Field(ge=1, le=bounds.MOST_STEPS)]
MOST_RUNGS = 32


class _Pruner(SpecModel):
    unit: Unit = Field(
        "steps",
        description="What this section counts: optimizer steps, or passes over the data. Default: "
        "`epochs` where the template has `eval_strategy: epoch`, else `steps`.",
    )


class NoPruner(SpecModel):
    """Every trial trains to its end."""

    name: Literal["none"] = "none"


class MedianPruner(_Pruner):
    """Ends a trial whose best value so far is worse than the median of the finished trials at the
    same step (Golovin et al. 2017)."""

    name: Literal["median"] = "median"
    n_startup_trials: int = Field(
        5, ge=0, le=100_000, description="This many trials finish before any is ended."
    )
    n_warmup: int = Field(
        0, ge=0, le=bounds.MOST_STEPS, description="No trial ends before, in `unit`."
    )
    n_min_trials: int = Field(
        1, ge=1, le=100_000, description="This many others must have reached the step."
    )


class PatiencePruner(_Pruner):
    """Ends a trial that has not improved for `patience` evaluations."""

    name: Literal["patience"] = "patience"
    patience: int = Field(
        3, ge=0, le=100_000, description="Evaluations in a row that may bring no gain."
    )
    min_delta: float = Field(
        0.0, ge=0, le=bounds.LARGEST, description="What a gain must exceed, in the metric."
    )


class _Halving(_Pruner):
    min_resource: Resource | None = Field(
        None,
        examples=[100],
        description="The first rung, in `unit`: what a trial trains before it is compared. "
        "Default: the first evaluation.",
    )
    reduction_factor: int = Field(
        3, ge=2, le=100, description="Of this many trials, one continues from a rung to the next."
    )


class AshaPruner(_Halving):
    """Asynchronous successive halving (Li et al. 2020). A trial that is not among the best at its
    rung is paused; when it is later, it continues where it was."""

    name: Literal["asha"] = "asha"
    rungs: list[Resource] | None = Field(
        None,
        min_length=1,
        max_length=MOST_RUNGS,
        examples=[[100, 300, 900]],
        description="The rungs themselves, in `unit`. Default: `min_resource`, and each "
        "`reduction_factor` times the one before.",
    )
    min_early_stopping_rate: int = Field(
        0, ge=0, le=MOST_RUNGS, description="This many of the first rungs are left out."
    )

    @rule
    def rungs_are_given_once(self) -> Iterator[str]:
        if self.rungs is not None and self.min_resource is not None:
            yield "`rungs` begin with the first rung: leave `min_resource` out"

    @rule
    def rungs_rise(self) -> Iterator[str]:
        if self.rungs is not None and sorted(set(self.rungs)) != self.rungs:
            yield "`rungs` must rise, each value once"


class HyperbandPruner(_Halving):
    """Several brackets of successive halving, whose first rungs differ (Li et al. 2018)."""

    name: Literal["hyperband"] = "hyperband"
    max_resource: Resource | None = Field(
        None,
        examples=[2700],
        description="What a whole training takes, in `unit`. Default: as the template says.",
    )

    @rule
    def resources_rise(self) -> Iterator[str]:
        if self.min_resource and self.max_resource and self.min_resource > self.max_resource:
            yield "`min_resource` is more than `max_resource`"


PrunerSpec = NoPruner | MedianPruner | AshaPruner | HyperbandPruner | PatiencePruner
