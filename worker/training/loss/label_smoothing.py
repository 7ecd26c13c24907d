"""`label_smoothing_factor`: the formula of transformers' LabelSmoother, as a sum over labels."""

from collections.abc import Callable
from typing import Final

import torch
from torch.nn import functional

from worker.training.objective import Batch, LossSum

IGNORED: Final = -100
"""The label of positions that do not count."""


def of_logits(
    logits_and_labels: Callable[[torch.nn.Module, Batch], tuple[torch.Tensor, torch.Tensor]],
    factor: float,
) -> LossSum:
    """`logits_and_labels`: (…, classes) logits and (…) labels, IGNORED where there is none."""
    return lambda model, batch: cross_entropies(*logits_and_labels(model, batch), factor)


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor, factor: float) -> torch.Tensor:
    """Sum of the cross entropies, in float32; (…, classes) and (…), IGNORED where there is no
    label."""
    return functional.cross_entropy(
        logits.float().flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=factor,
        reduction="sum",
    )
