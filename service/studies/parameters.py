"""The dimensions of a search as Optuna has them, and their values in both directions."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from service.contract.search.space import Dimension, in_order, same


@dataclass(frozen=True)
class Parameter:
    path: str
    dimension: Dimension
    distribution: BaseDistribution
    """One object for all trials: ten thousand of them share it."""

    def to_optuna(self, value: Any) -> Any:
        """Raises `ValueError` for a value that is not one of the choices."""
        one = self.distribution
        if isinstance(one, CategoricalDistribution):
            return one.choices[self._index(value)]
        assert isinstance(one, IntDistribution | FloatDistribution)
        if isinstance(one, IntDistribution):
            return int(value)
        # 0.1 + 0.2 is more than 0.3, where Optuna ends the steps of 0.1 up to 0.35.
        return float(min(value, one.high) if self.dimension.holds(value) else value)

    def from_optuna(self, value: Any) -> Any:
        if self.dimension.choices is not None:
            return self.dimension.choices[int(self.distribution.to_internal_repr(value))]
        return int(value) if isinstance(self.distribution, IntDistribution) else float(value)

    def suggested(self, trial: Trial) -> Any:
        """The value that Optuna's sampler suggests for this trial."""
        one = self.distribution
        if isinstance(one, CategoricalDistribution):
            return self.from_optuna(trial.suggest_categorical(self.path, one.choices))
        assert isinstance(one, IntDistribution | FloatDistribution)
        suggest: Any = (
            trial.suggest_int if isinstance(one, IntDistribution) else trial.suggest_float
        )
        return suggest(self.path, one.low, one.high, step=one.step, log=one.log)

    def grid(self) -> list[Any]:
        """Every value. Only for a finite number of them."""
        if self.dimension.choices is not None:
            return self.dimension.choices
        assert isinstance(self.distribution, IntDistribution | FloatDistribution)
        low, high = self.distribution.low, self.distribution.high
        if isinstance(self.distribution, IntDistribution):
            return list(range(int(low), int(high) + 1, self.distribution.step))
        # In decimals, so that three steps of 0.1 make 0.3.
        step = Decimal(str(self.distribution.step or 1))
        count = int((Decimal(str(high)) - Decimal(str(low))) / step) + 1
        return [float(Decimal(str(low)) + index * step) for index in range(count)]

    def _index(self, value: Any) -> int:
        choices = self.dimension.choices or []
        texts = [_text(choice) for choice in choices]
        if _text(value) in texts:
            return texts.index(_text(value))
        for index, choice in enumerate(choices):
            if same(value, choice):
                return index
        raise ValueError(f"{value!r} is not one of the choices of {self.path}")


def parameters_of(space: Mapping[str, Dimension]) -> dict[str, Parameter]:
    """By path, in the order in which a trial gets its values: Optuna's depend on it."""
    return {
        path: Parameter(path, space[path], _distribution(space[path])) for path in in_order(space)
    }


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices is not None:
        return CategoricalDistribution(_distinct(dimension.choices))
    if dimension.low is None or dimension.high is None:
        raise ValueError("a dimension has neither a range nor choices")
    with warnings.catch_warnings():
        # A range that its step does not divide ends at the last whole step.
        warnings.filterwarnings("ignore", "The distribution is specified by")
        if dimension.is_integer:
            low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
            return IntDistribution(low, high, log=dimension.log, step=step)
        return FloatDistribution(
            dimension.low, dimension.high, log=dimension.log, step=dimension.step
        )


def _distinct(choices: Sequence[Any]) -> list[Any]:
    """Optuna tells choices apart by `==` and takes only scalars. Where that is not enough (lists,
    sections, both `true` and 1), it gets their JSON text."""
    scalars = all(
        choice is None or isinstance(choice, bool | int | float | str) for choice in choices
    )
    if scalars and len(set(choices)) == len(choices):
        return list(choices)
    return [_text(choice) for choice in choices]


def _text(choice: Any) -> str:
    return json.dumps(choice, sort_keys=True)
