"""What training on preferences has in common, whichever the loss: batches and the reference."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from service.contract.spec.splits import TRAIN
from service.contract.tasks.preference import PreferenceSpec
from worker.tasks.base import PreparedSplit
from worker.tasks.common import sequence_batches
from worker.tasks.common.sequence_batches import following
from worker.tasks.common.token_scores import IGNORED
from worker.training.kernels import selective_head
from worker.training.loss import auxiliary_loss, chunked_cross_entropy, chunked_log_probs
from worker.training.objective import SEQUENCES, Batch, Features, Forward, Objective

Floats = npt.NDArray[np.float32]
FILL: Final = 0
"""The id of padding: any, because the attention mask hides it."""
REFERENCE: Final = "reference"


class _WithReference(Sequence[Mapping[str, Any]]):
    """Features with the log-probabilities that the reference gives to their sequences."""

    def __init__(self, features: Features) -> None:
        self.viewed = features
        self.values: Floats | None = None
        """(features, sequences); None: 0 each."""

    def __len__(self) -> int:
        return len(self.viewed)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Mapping[str, Any]]:
        features: Any = self.viewed
        several = getattr(features, "__getitems__", None)  # Arrow reads them all at once
        rows = [features[index] for index in indices] if several is None else several(indices)
        known = self.values
        return [
            {**row, REFERENCE: [0.0] * len(row["lengths"]) if known is None else known[index]}
            for row, index in zip(rows, indices, strict=True)
        ]


class PreferenceObjective(Objective):
    """Features have two sequences each."""

    def __init__(
        self,
        parameters: PreferenceSpec,
        splits: Mapping[str, PreparedSplit],
        model: Any,
        linear: torch.nn.Linear | None,
    ) -> None:
        """`linear`: the head of the bare `model` if log-probabilities can be computed from the
        head's input, else None."""
        self.parameters = parameters
        self._bare_model = model
        self.auxiliary = auxiliary_loss.find(model, linear)
        self.linear = None if self.auxiliary.needs_logits else linear
        caches = "use_cache" in inspect.signature(model.forward).parameters
        self._no_cache = {"use_cache": False} if caches else {}
        self._splits = splits
        self._features = {name: _WithReference(split.features) for name, split in splits.items()}
        self.train_features: Features = self._features.get(TRAIN, [])

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        batch = sequence_batches.collate(features, FILL)
        values = np.array([feature[REFERENCE] for feature in features], dtype=np.float32)
        return {**batch, REFERENCE: torch.from_numpy(values)}

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        cut = sequence_batches.first_examples(batch, rows)
        return {**cut, REFERENCE: batch[REFERENCE][:rows]}

    def item_count(self, batch: Batch) -> int:
        return len(batch[SEQUENCES])

    def sums(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """(features, 2) log-probabilities of the sequences."""
        return self.log_probs(model, batch).view(-1, 2)

    def log_probs(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """The sum over the labels of each row of a batch of `sequence_batches`, (rows,) float32."""
        ids, places = batch["input_ids"], batch["places"]
        labels = following(batch).flatten().index_select(0, places)
        tokens = self._of_tokens(model, batch, labels)
        # No sum by index: on a GPU its order, and so its rounding, is not always the same.
        return tokens.new_zeros(ids.numel()).index_copy(0, places, tokens).view_as(ids).sum(dim=1)

    def _of_tokens(
        self, model: torch.nn.Module, batch: Batch, labels: torch.Tensor
    ) -> torch.Tensor:
        """The log-probability of each label, given for the batch's `places`."""
        places = batch["places"]
        linear = chunked_cross_entropy.current_head(self._bare_model, self.linear)
        if linear is None:
            logits = self._output(model, batch).logits.flatten(0, 1).index_select(0, places)
            return -functional.cross_entropy(logits.float(), labels, reduction="none")
        head = chunked_cross_entropy.head_input(
            self._bare_model, lambda: self._output(model, batch)
        )
        states = selective_head.states_at(head.states, places, batch["attention_mask"])
        return chunked_log_probs.of_labels(linear, head._replace(states=states), labels, self.rows)

    def _output(self, model: torch.nn.Module, batch: Batch) -> Any:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return self.auxiliary.call(model, {**inputs, **self._no_cache}, batch["input_ids"])

    @property
    def reference_splits(self) -> tuple[str, ...]:
        return tuple(self._features) if self.parameters.needs_reference() else ()

    def reference_values(self, split: str, forward: Forward) -> Floats:
        def run(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
            with _without_adapter(model):
                return self.sums(model, batch)

        features = self._features[split]
        found = np.zeros((len(features), 2), dtype=np.float32)
        for indices, values in forward(features, self.collate, run):
            found[indices] = values.cpu().numpy()
        return found

    def use_reference(self, split: str, values: Floats) -> None:
        self._features[split].values = values


def token_counts(batch: Batch) -> torch.Tensor:
    """Labels of each row, (rows,) float32; 1 for a row without any."""
    return (following(batch) != IGNORED).sum(dim=1).clamp(min=1).float()


def _without_adapter(model: Any) -> AbstractContextManager[None]:
    """The base model alone, if `model` is peft's."""
    disabled: Callable[[], AbstractContextManager[None]] = getattr(
        model, "disable_adapter", nullcontext
    )
    return disabled()
