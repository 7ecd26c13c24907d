"""Logged numbers under the names that OpenAI gives them."""

import math
from collections.abc import Mapping
from typing import Any


def by_name(kind: str, values: Mapping[str, Any]) -> dict[str, float | None]:
    """Of a point of kind `train` or `eval`. Every evaluation is of all validation rows."""
    if kind == "train":
        return {
            "train_loss": _finite(values.get("loss")),
            "train_mean_token_accuracy": _finite(values.get("accuracy")),
        }
    loss, accuracy = (
        _finite(values.get(f"eval_{name}", values.get(name))) for name in ("loss", "accuracy")
    )
    return {
        "valid_loss": loss,
        "valid_mean_token_accuracy": accuracy,
        "full_valid_loss": loss,
        "full_valid_mean_token_accuracy": accuracy,
    }


def _finite(value: Any) -> float | None:
    """NaN and infinities are stored as text."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None
