"""What the training loop needs to know of a task, and nothing more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

Batch = dict[str, torch.Tensor]
Features = Sequence[Mapping[str, Any]]
Collate = Callable[[list[Mapping[str, Any]]], Batch]

Forward = Callable[[Features, Collate], Iterator[tuple[list[int], Any]]]
"""Runs the model over features in evaluation mode, under the job's precision, without gradients.

Yields (indices into the features, the model's output for them), in any order of indices; the
loop supplies it, with its device, batch size and progress events.
"""


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]
    files: dict[str, Path] = field(default_factory=dict)
    """Name that the user sees → file written under the folder that `evaluate` was given."""
    samples: list[dict[str, Any]] = field(default_factory=list)


class Objective(Protocol):
    """A task bound to one job's data: batches, their loss, and the evaluation."""

    train_features: Features

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Pad to the longest of the batch; tensors of shape (batch, length) or (batch,)."""

    def item_count(self, batch: Batch) -> int:
        """Items that the loss is normalised by: examples, or tokens with a label."""

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Sum (not mean) of the items' losses; the loop divides by the items of the whole
        accumulated batch, so that accumulation equals the large batch exactly."""

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        """Metrics of `split` ("validation") or predictions ("test"); files go under `folder`.

        None when the job has no such split.
        """
