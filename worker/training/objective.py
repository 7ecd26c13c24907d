"""What the training loop needs to know of a task, and nothing more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

Batch = dict[str, torch.Tensor]
Features = Sequence[Mapping[str, Any]]
Collate = Callable[[list[Mapping[str, Any]]], Batch]


@runtime_checkable
class EpochFeatures(Protocol):
    """Training features that each epoch shows anew, for example under fresh masks."""

    def at_epoch(self, epoch: int) -> Features:
        """As many, of the same lengths and in the same order; a pure function of the epoch."""


@runtime_checkable
class ViewOfFeatures(Protocol):
    """Shows other features in another way, each as long as it is there."""

    viewed: Features


def at_epoch(features: Features, epoch: int) -> Features:
    """What the training sees of `features` in this epoch: most of them never change."""
    return features.at_epoch(epoch) if isinstance(features, EpochFeatures) else features


Run = Callable[[torch.nn.Module, Batch], Any]
"""What to do with the model and a batch on its device, in place of one forward pass."""


class Forward(Protocol):
    """Runs the model over features in evaluation mode, under the job's precision, without
    gradients.

    The loop supplies it, with its device, batch size and progress events. `run` is for what needs
    more of the model than its output, for example generated texts; it is given the bare model.
    What it returns may come from another process: tensors, or tuples and mappings of them.
    """

    def __call__(
        self,
        features: Features,
        collate: Collate,
        run: Run | None = None,
        *,
        generates: bool = False,
    ) -> Iterator[tuple[list[int], Any]]:
        """Yields (indices into the features, what came out for them), in any order of indices.

        Without `run` the model's output, of which only the loss and the logits may be asked for.
        `generates`: `run` calls the model more often for some batches than for others.
        """


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]
    files: dict[str, Path] = field(default_factory=dict)
    """Name that the user sees → file written under the folder that `evaluate` was given."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    """What the config of a model that is finished by this evaluation holds besides."""
    speed: dict[str, float] = field(default_factory=dict)
    """How much was evaluated, and how fast, by Trainer's names: never the same twice, therefore
    not among the metrics."""


@runtime_checkable
class GivesLogits(Protocol):
    """An objective whose loss is a cross entropy of one label each: it can be smoothed."""

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(…, classes) and (…) side by side; the label is -100 where nothing is asked for."""


@runtime_checkable
class SmoothsLabels(Protocol):
    """An objective that smooths its labels itself."""

    def smoothed_loss_sum(
        self, model: torch.nn.Module, batch: Batch, factor: float
    ) -> torch.Tensor:
        """As `loss_sum`, by the arithmetic of transformers' LabelSmoother."""


@runtime_checkable
class MakesLogitsInParts(Protocol):
    """An objective that need not make the logits of a whole batch (`linear_loss`)."""

    linear: torch.nn.Linear | None
    """The head; None where whole logits are made all the same."""
    rows: int | None
    """Tokens of a part, if not what a processor's cache holds."""


@runtime_checkable
class CutsBatches(Protocol):
    """An objective whose batches have tensors without a row for each example."""

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        """The batch of the first `rows` examples, padded as all of them."""


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
