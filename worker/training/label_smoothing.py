"""`label_smoothing_factor`: the formula of transformers' LabelSmoother, as a sum over labels."""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch.nn import functional

from worker.failures import invalid_option
from worker.training.objective import Batch, GivesLogits, Objective, SmoothsLabels

IGNORED: Final = -100
"""The label of positions that do not count."""

LossSum = Callable[[torch.nn.Module, Batch], torch.Tensor]


def loss_sum(objective: Objective, factor: float) -> LossSum:
    """The objective's own loss sum, or the smoothed one.

    StageError(invalid_option) if the task's loss is not a cross entropy over classes.
    """
    if factor == 0:
        return objective.loss_sum
    if isinstance(objective, SmoothsLabels):
        return partial(objective.smoothed_loss_sum, factor=factor)
    if not isinstance(objective, GivesLogits):
        option = "training.label_smoothing_factor"
        why = "needs a task whose loss is a cross entropy with one label each"
        raise invalid_option(option, why)
    gives_logits = objective

    def smoothed(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return cross_entropies(*gives_logits.logits_and_labels(model, batch), factor)

    return smoothed


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
