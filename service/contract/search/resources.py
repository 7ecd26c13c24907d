"""How long the trials of a search train, and how often they are evaluated, in the pruner's unit."""

import math
from collections.abc import Mapping
from typing import Final

from service.contract.search.pruners import Unit
from service.contract.search.space import Dimension
from service.contract.spec.training import TrainingSpec

_LENGTH: Final = {
    "steps": ("max_steps",),
    "epochs": ("max_steps", "num_train_epochs"),
}
"""What decides the length of a training."""


def total(training: TrainingSpec, space: Mapping[str, Dimension], unit: Unit) -> int | None:
    """What a whole training takes; None where the data or the trial decides it."""
    if any(f"training.{name}" in space for name in _LENGTH[unit]):
        return None
    has_steps = training.max_steps > 0
    if unit == "steps":
        return training.max_steps if has_steps else None
    return None if has_steps else math.ceil(training.num_train_epochs)


def every(training: TrainingSpec, space: Mapping[str, Dimension], unit: Unit) -> int:
    """What lies between two evaluations; 1 where the data or the trial decides it."""
    names = ("training.eval_steps", "training.eval_strategy", "training.logging_steps")
    is_fixed = not any(name in space for name in names)
    if unit == "epochs" or not is_fixed or training.eval_strategy != "steps":
        return 1
    steps = training.eval_steps or training.logging_steps
    if steps < 1:  # a ratio of all steps
        whole = total(training, space, unit)
        return 1 if whole is None else max(1, math.ceil(steps * whole))
    return int(steps)
