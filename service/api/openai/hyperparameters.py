"""What `auto` means: epochs, batch size and learning rate from the number of examples."""

import math
from typing import Any, Final, NamedTuple

EPOCHS: Final = 3
_MOST_EPOCHS: Final = 25
_LEAST_EXAMPLES: Final = 100
_MOST_EXAMPLES: Final = 25_000
"""Examples times epochs, as OpenAI documents them."""
_SHARE_OF_BATCH: Final = 0.002
LARGEST_AUTO_BATCH: Final = 256
_USEFUL_BATCH: Final = 4
_ENOUGH_STEPS: Final = 100
BATCH_OF_UNKNOWN: Final = 8
_LARGEST_FORWARD: Final = 8
"""Examples of one forward pass; larger batches are accumulated."""
_POINTS: Final = 200
"""Logged steps of a training, about: each becomes a row of its metrics."""
_MOST_POINTS_APART: Final = 500

BASE_RATES: Final[dict[str, tuple[float, float]]] = {
    "chat": (2e-5, 2e-4),
    "preference": (1e-6, 1e-5),
}
"""Learning rate that a multiplier of 1 means, for all weights and for an adapter."""
_OTHER_RATES: Final = (5e-5, 2e-4)


def base_rate(task: str, *, is_adapter: bool) -> float:
    return BASE_RATES.get(task, _OTHER_RATES)[is_adapter]


def auto_epochs(examples: int | None) -> int:
    """3 epochs; more for few examples, fewer for many: 100 to 25,000 examples in all, 1 to 25
    epochs."""
    if not examples:
        return EPOCHS
    if examples * EPOCHS < _LEAST_EXAMPLES:
        return min(_MOST_EPOCHS, math.ceil(_LEAST_EXAMPLES / examples))
    if examples * EPOCHS > _MOST_EXAMPLES:
        return max(1, _MOST_EXAMPLES // examples)
    return EPOCHS


def auto_batch_size(examples: int | None, epochs: int) -> int:
    """0.2 % of the examples, 1 to 256; and at least 4 where that leaves a hundred steps."""
    if not examples:
        return BATCH_OF_UNKNOWN
    useful = min(_USEFUL_BATCH, examples * epochs // _ENOUGH_STEPS)
    return min(LARGEST_AUTO_BATCH, max(1, round(examples * _SHARE_OF_BATCH), useful))


def auto_multiplier(batch_size: int) -> float:
    """A larger batch allows a larger learning rate."""
    if batch_size <= 16:
        return 1.0
    return 1.5 if batch_size <= 64 else 2.0


class Batch(NamedTuple):
    per_device: int
    accumulated: int


def split_batch(size: int) -> Batch:
    """The largest number of examples, up to 8, that divides the batch."""
    per_device = max(each for each in range(1, _LARGEST_FORWARD + 1) if size % each == 0)
    return Batch(per_device, size // per_device)


def logging_steps(examples: int | None, epochs: float, batch_size: int) -> int:
    """Steps between two logs, so that a training logs about 200 times."""
    if not examples:
        return 10
    return min(_MOST_POINTS_APART, max(1, math.ceil(examples * epochs / batch_size / _POINTS)))


def reported(spec: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters of any job, as OpenAI names them; null for what it cannot say."""
    training, task = spec.get("training") or {}, spec["task"]
    epochs = float(training.get("num_train_epochs", EPOCHS))
    by_steps = training.get("max_steps", -1) > 0
    base = base_rate(task["type"], is_adapter=spec.get("peft") is not None)
    return {
        "n_epochs": int(epochs) if epochs.is_integer() and not by_steps else None,
        "batch_size": training["per_device_train_batch_size"]
        * training.get("gradient_accumulation_steps", 1),
        "learning_rate_multiplier": float(f"{training['learning_rate'] / base:.6g}"),
    }
