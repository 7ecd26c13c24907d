"""Loss, perplexity and accuracy of a language model, for each feature and for all."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

IGNORED = -100
"""The label of tokens that do not count."""


class TokenResults(NamedTuple):
    """The results of an evaluation for each token, both (batch, length)."""

    losses: torch.Tensor
    """float32; 0 where the label is ignored."""
    right: torch.Tensor
    """bool: whether the label is the most likely token."""


def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(…) cross entropies in float32 of (…, classes) logits, 0 where the label is ignored."""
    flat = functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return flat.view(labels.shape)


def token_results(logits: torch.Tensor, labels: torch.Tensor) -> TokenResults:
    """As `losses`."""
    return TokenResults(losses(logits, labels), logits.argmax(dim=-1) == labels)


class Scores:
    """Sums over the predicted tokens of each feature."""

    def __init__(self, features: int) -> None:
        self.loss = np.zeros(features)
        self.tokens = np.zeros(features, dtype=np.int64)
        self.right = np.zeros(features, dtype=np.int64)

    def add(
        self, indices: Sequence[int], token_results: TokenResults, labels: torch.Tensor
    ) -> None:
        """`labels`: (batch, length), IGNORED where tokens do not count; on any device."""
        self.loss[indices] = token_results.losses.double().sum(dim=1).cpu().numpy()
        self.tokens[indices] = (labels != IGNORED).sum(dim=1).cpu().numpy()
        self.right[indices] = token_results.right.sum(dim=1).cpu().numpy()

    def metrics(self) -> dict[str, float]:
        """Metrics over the tokens of all features."""
        return _figures(float(self.loss.sum()), int(self.tokens.sum()), int(self.right.sum()))

    def rows(self, keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """For each feature its key, the number of tokens that count, and its metrics."""
        columns = zip(keys, self.loss, self.tokens, self.right, strict=True)
        return [
            {
                **key,
                "tokens": int(tokens),
                **_finite(_figures(float(loss), int(tokens), int(right))),
            }
            for key, loss, tokens, right in columns
        ]


def _figures(loss: float, tokens: int, right: int) -> dict[str, float]:
    mean = loss / tokens if tokens else math.nan
    return {
        "loss": mean,
        "perplexity": perplexity(mean),
        "accuracy": float(right / tokens) if tokens else math.nan,
    }


def perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    """The values with None for NaN and infinity, which JSON does not have."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
