"""Loss, perplexity and accuracy of a language model, per feature and overall."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

IGNORED = -100
"""The label of tokens that have no loss."""


class TokenResults(NamedTuple):
    """Evaluation results per token, both (batch, length)."""

    losses: torch.Tensor
    """float32; 0 where the label is ignored."""
    correct: torch.Tensor
    """bool: whether the label is the most likely token."""


def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(…) float32 cross entropies of (…, classes) logits; 0 where the label is ignored."""
    flat = functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return flat.view(labels.shape)


def token_results(logits: torch.Tensor, labels: torch.Tensor) -> TokenResults:
    """The arguments are those of `losses`."""
    return TokenResults(losses(logits, labels), logits.argmax(dim=-1) == labels)


class Scores:
    """Sums over the predicted tokens of each feature."""

    def __init__(self, features: int) -> None:
        self.loss = np.zeros(features)
        self.tokens = np.zeros(features, dtype=np.int64)
        self.correct = np.zeros(features, dtype=np.int64)

    def add(
        self, indices: Sequence[int], token_results: TokenResults, labels: torch.Tensor
    ) -> None:
        """`labels`: (batch, length), on any device; IGNORED for tokens without a loss."""
        self.loss[indices] = token_results.losses.double().sum(dim=1).cpu().numpy()
        self.tokens[indices] = (labels != IGNORED).sum(dim=1).cpu().numpy()
        self.correct[indices] = token_results.correct.sum(dim=1).cpu().numpy()

    def metrics(self) -> dict[str, float]:
        """Metrics over the tokens of all features."""
        return _metrics(float(self.loss.sum()), int(self.tokens.sum()), int(self.correct.sum()))

    def rows(self, keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """For each feature its key, the number of predicted tokens, and its metrics."""
        columns = zip(keys, self.loss, self.tokens, self.correct, strict=True)
        return [
            {
                **key,
                "tokens": int(tokens),
                **_finite(_metrics(float(loss), int(tokens), int(correct))),
            }
            for key, loss, tokens, correct in columns
        ]


def key_of_each(features: Any) -> list[dict[str, int]]:
    """The row or the block that each feature comes from."""
    if "row" in features.column_names:
        return [{"row": row} for row in features["row"]]
    return [{"block": number} for number in range(len(features))]


def _metrics(loss: float, tokens: int, correct: int) -> dict[str, float]:
    mean = loss / tokens if tokens else math.nan
    return {
        "loss": mean,
        "perplexity": perplexity(mean),
        "accuracy": float(correct / tokens) if tokens else math.nan,
    }


def perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
