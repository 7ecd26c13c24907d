"""The interface between the training loop and a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

Batch = dict[str, torch.Tensor]
Features = Sequence[Mapping[str, Any]]
Collate = Callable[[list[Mapping[str, Any]]], Batch]

SEQUENCES: Final = "sequence_counts"
"""In a batch of packed examples: (examples,) how many rows of the batch each of them has. Without
it each row is an example."""


@runtime_checkable
class EpochFeatures(Protocol):
    """Training features that change with each epoch, for example with new masks."""

    def at_epoch(self, epoch: int) -> Features:
        """As many, of the same lengths and in the same order; a pure function of the epoch."""


@runtime_checkable
class ViewOfFeatures(Protocol):
    """A view of other features that changes their content but not their lengths."""

    viewed: Features


def at_epoch(features: Features, epoch: int) -> Features:
    """The features of this epoch; most tasks use the same in all epochs."""
    return features.at_epoch(epoch) if isinstance(features, EpochFeatures) else features


class BatchSize(NamedTuple):
    examples: int
    tokens: int
    """Without padding."""
    padded_tokens: int
    """With the padding; packed examples have none."""

    @classmethod
    def of(cls, batch: Batch) -> "BatchSize":
        """Of a batch on the CPU."""
        ids, mask, packed = batch["input_ids"], batch.get("attention_mask"), batch.get(SEQUENCES)
        tokens = ids.numel() if mask is None else int(mask.sum())
        if packed is not None:
            return cls(len(packed), tokens, tokens)
        return cls(len(ids), tokens, ids.numel())


def shape_of(batch: Batch) -> tuple[int, int]:
    """The examples of a batch, and the tokens of each with padding; on average if packed."""
    if SEQUENCES in batch:
        size = BatchSize.of(batch)
        return size.examples, -(-size.tokens // size.examples)
    shape = next(iter(batch.values())).shape
    return shape[0], shape[1] if len(shape) > 1 else 1


Run = Callable[[torch.nn.Module, Batch], Any]
"""A function of the model and a batch on its device, instead of one forward pass."""


class Forward(Protocol):
    """Runs the model over features in evaluation mode, under the job's precision, without
    gradients.

    The loop supplies it, with its device, batch size and progress events. `run` is for tasks that
    need more than the model's output, for example generated texts; it gets the bare model. Its
    result may come from another process: tensors, or tuples and mappings of them.
    """

    def __call__(
        self,
        features: Features,
        collate: Collate,
        run: Run | None = None,
        *,
        generates: bool = False,
    ) -> Iterator[tuple[list[int], Any]]:
        """Yields (indices into the features, the results for them), in any order of indices.

        Without `run` the result is the model's output, with only its loss and logits.
        `generates`: `run` calls the model more often for some batches than for others.
        """


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]
    files: dict[str, Path] = field(default_factory=dict)
    """Name that the user sees → file written under the folder that `evaluate` was given."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    """Entries to add to the config of a model that is finished with this evaluation."""
    speed: dict[str, float] = field(default_factory=dict)
    """How much was evaluated and how fast, with Trainer's names; not among the metrics, because it
    is never the same twice."""


@runtime_checkable
class GivesLogits(Protocol):
    """An objective whose loss is a cross entropy with one label each, which can be smoothed."""

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(…, classes) logits and (…) labels; -100 where there is no label."""


@runtime_checkable
class SmoothsLabels(Protocol):
    """An objective that smooths its labels itself."""

    def smoothed_loss_sum(
        self, model: torch.nn.Module, batch: Batch, factor: float
    ) -> torch.Tensor:
        """As `loss_sum`, by the formula of transformers' LabelSmoother."""


@runtime_checkable
class ChunksLogits(Protocol):
    """An objective that can compute its loss in chunks, without the logits of a whole batch."""

    linear: torch.nn.Linear | None
    """The head; None if the logits of the whole batch are needed."""
    rows: int | None
    """Tokens of a chunk; None to fit a CPU's cache."""


@runtime_checkable
class LogsValues(Protocol):
    """An objective whose training logs more than its loss: means since the last log."""

    logged: tuple[str, ...]
    """The names of the further values."""

    def loss_and_values(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`loss_sum`, and (2, values) float64 without gradient: the sum of each value, and of how
        many items it is the sum."""


@runtime_checkable
class DerivesValues(Protocol):
    """An objective that also logs values which follow from the means of its others."""

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """`means`: of the values that `LogsValues` names; those without an item are missing."""


@runtime_checkable
class SurveysSteps(Protocol):
    """An objective whose losses depend on all examples of an optimizer step."""

    def survey(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """(n,) float64 sums over a batch; called without gradients."""

    def use_survey(self, sums: torch.Tensor) -> None:
        """Called before the step's losses are computed, with the sums over all its batches and
        processes."""


@runtime_checkable
class UsesReference(Protocol):
    """An objective that compares the model with the one that the training starts from."""

    @property
    def reference_splits(self) -> tuple[str, ...]:
        """The splits that are compared; none if the job needs no reference."""

    def reference_values(self, split: str, forward: Forward) -> npt.NDArray[np.float32]:
        """(features, …) what the reference says. Called before the model is trained, with its
        adapter if it has one."""

    def use_reference(self, split: str, values: npt.NDArray[np.float32]) -> None:
        """Called with these values before anything else is computed."""


@runtime_checkable
class CutsBatches(Protocol):
    """An objective whose batches have tensors that are not indexed by example."""

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        """The batch of the first `rows` examples, padded like the whole batch."""


class Objective(Protocol):
    """A task bound to one job's data: its batches, loss and evaluation."""

    train_features: Features

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Pad to the longest feature of the batch; tensors of shape (batch, length) or (batch,)."""

    def item_count(self, batch: Batch) -> int:
        """Items that the loss is divided by: examples, or tokens with a label."""

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Sum (not mean) of the items' losses; the loop divides by the items of the whole
        accumulated batch, so that gradient accumulation equals the large batch exactly."""

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        """Metrics of `split` ("validation") or predictions ("test"); files go under `folder`.

        None when the job has no such split.
        """
