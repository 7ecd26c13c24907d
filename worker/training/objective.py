"""The interface between the training loop and a task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from worker.failures import invalid_option

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
    def from_batch(cls, batch: Batch) -> "BatchSize":
        """Of a batch on the CPU."""
        ids, mask, packed = batch["input_ids"], batch.get("attention_mask"), batch.get(SEQUENCES)
        tokens = ids.numel() if mask is None else int(mask.sum())
        if packed is not None:
            return cls(len(packed), tokens, tokens)
        return cls(len(ids), tokens, ids.numel())


def shape_of(batch: Batch) -> tuple[int, int]:
    """The examples of a batch, and the tokens of each with padding; on average if packed."""
    if SEQUENCES in batch:
        size = BatchSize.from_batch(batch)
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


LossSum = Callable[[torch.nn.Module, Batch], torch.Tensor]


class Objective(ABC):
    """A task bound to one job's data: its batches, loss and evaluation.

    What a task does not need, it leaves as it is here.
    """

    train_features: Features
    logged: tuple[str, ...] = ()
    """The names of further values that the training logs besides the loss: means since the last
    log."""
    needs_step_statistics = False
    """Whether the losses depend on all examples of an optimizer step."""
    linear: torch.nn.Linear | None = None
    """The head, if the loss can be computed in chunks, without the logits of a whole batch."""
    rows: int | None = None
    """Tokens of a chunk; None to fit a CPU's cache."""

    @abstractmethod
    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Pad to the longest feature of the batch; tensors of shape (batch, length) or (batch,)."""

    @abstractmethod
    def item_count(self, batch: Batch) -> int:
        """Items that the loss is divided by: examples, or tokens with a label."""

    @abstractmethod
    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Sum (not mean) of the items' losses; the loop divides by the items of the whole
        accumulated batch, so that gradient accumulation equals the large batch exactly."""

    @abstractmethod
    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        """Metrics of `split` ("validation") or predictions ("test"); files go under `folder`.

        None when the job has no such split.
        """

    def smoothed(self, factor: float) -> LossSum:  # noqa: ARG002
        """`loss_sum` with smoothed labels, by the formula of transformers' LabelSmoother.
        StageError(invalid_option) if the loss is not a cross entropy over classes."""
        option = "training.label_smoothing_factor"
        why = "needs a task whose loss is a cross entropy with one label each"
        raise invalid_option(option, why)

    def loss_and_values(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`loss_sum`, and (2, values) float64 without gradient: the sum of each value of `logged`,
        and of how many items it is the sum. Called in place of `loss_sum` if there are such."""
        raise NotImplementedError

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:  # noqa: ARG002
        """Values to log that follow from the `means` of `logged`; a value without an item is
        missing there."""
        return {}

    def step_statistics(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """(n,) float64 sums over a batch; called without gradients if `needs_step_statistics`."""
        raise NotImplementedError

    def use_step_statistics(self, sums: torch.Tensor) -> None:
        """Called before the step's losses are computed, with the sums over all its batches and
        processes."""
        raise NotImplementedError

    @property
    def reference_splits(self) -> tuple[str, ...]:
        """The splits in which the model is compared with the one that the training starts from."""
        return ()

    def reference_values(self, split: str, forward: Forward) -> npt.NDArray[np.float32]:
        """(features, …) the reference's values. Called before the model is trained, with its
        adapter if it has one."""
        raise NotImplementedError

    def use_reference(self, split: str, values: npt.NDArray[np.float32]) -> None:
        """Called with these values before anything else is computed."""
        raise NotImplementedError

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        """The batch of the first `rows` examples, padded like the whole batch."""
        return {name: value[:rows] for name, value in batch.items()}
