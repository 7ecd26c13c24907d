"""The loss of predicting each token from those before it, which several tasks share."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from worker.tasks.base import PreparedSplit, train_features
from worker.tasks.common import sequence_batches
from worker.tasks.common.sequence_batches import following
from worker.tasks.common.token_scores import IGNORED, Scores, TokenResults, token_results
from worker.training.kernels import selective_head
from worker.training.loss import auxiliary_loss, chunked_cross_entropy, label_smoothing
from worker.training.loss.chunked_cross_entropy import HeadInput
from worker.training.objective import Batch, Features, Forward, LossSum, Objective

_INPUTS: Final = ("input_ids", "attention_mask", "position_ids")


class NextTokenObjective(Objective):
    """Batches have `labels`, the tokens themselves, not shifted. With `places`, as
    `sequence_batches` makes them, the head is computed only where the next token is a label."""

    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        model: Any,
        linear: torch.nn.Linear | None = None,
    ) -> None:
        """`linear`: the head of the bare `model` if the loss can be computed from the head's input,
        else None."""
        self._bare_model = model
        self.auxiliary = auxiliary_loss.find(model, linear)
        self.linear = None if self.auxiliary.needs_logits else linear
        self._splits = splits
        caches = "use_cache" in inspect.signature(model.forward).parameters
        self._no_cache = {"use_cache": False} if caches else {}
        self.train_features: Features = train_features(splits)

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        return sequence_batches.first_examples(batch, rows)

    def item_count(self, batch: Batch) -> int:
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss_sum(
        self, model: torch.nn.Module, batch: Batch, smoothing: float = 0.0
    ) -> torch.Tensor:
        """Without the logits of the whole batch if possible."""
        linear = self._head()
        if linear is None:
            return label_smoothing.cross_entropies(*self.logits_and_labels(model, batch), smoothing)
        head, labels = self._head_input(model, batch)
        return chunked_cross_entropy.loss_sum(linear, head, labels, smoothing, self.rows)

    def smoothed(self, factor: float) -> LossSum:
        return partial(self.loss_sum, smoothing=factor)

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of each token, and the token that follows it."""
        return self._output(model, batch).logits[:, :-1], batch["labels"][:, 1:]

    def _scores(self, features: Features, forward: Forward) -> tuple[Scores, dict[str, float]]:
        """Of each feature, which must be one sequence; and the metrics of all."""
        scores = Scores(len(features))
        scored = self.auxiliary.scored(forward)
        for indices, (found, labels) in scored(features, self.collate, self._token_results):
            scores.add(indices, found, labels)
        return scores, scored.added(scores.metrics())

    def _head(self) -> torch.nn.Linear | None:
        """The head, if the logits of the whole batch are not needed."""
        return chunked_cross_entropy.current_head(self._bare_model, self.linear)

    def _head_input(self, model: torch.nn.Module, batch: Batch) -> tuple[HeadInput, torch.Tensor]:
        """The head's input, and the token that follows each token; (1, places, …) of a batch with
        `places`."""
        head = chunked_cross_entropy.head_input(
            self._bare_model, lambda: self._output(model, batch)
        )
        labels = following(batch)
        if "places" not in batch:
            return head, labels
        places = batch["places"]
        states = selective_head.states_at(head.states, places, batch["attention_mask"])
        return HeadInput(states[None], head.dtype), labels.flatten().index_select(0, places)[None]

    def _token_results(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[TokenResults, torch.Tensor]:
        """The results for each token, and the token that follows it."""
        linear = self._head()
        if linear is None:
            logits, labels = self.logits_and_labels(model, batch)
            return token_results(logits, labels), labels
        head, labels = self._head_input(model, batch)
        if not labels.numel():
            losses = torch.zeros(batch["labels"].shape, device=batch["labels"].device)
            return TokenResults(losses, losses.bool()), following(batch)
        found = chunked_cross_entropy.map_chunks(linear, head, labels, token_results, self.rows)
        if "places" not in batch:
            return TokenResults(*found), labels
        return TokenResults(*(_spread(each, batch) for each in found)), following(batch)

    def _output(self, model: torch.nn.Module, batch: Batch) -> Any:
        inputs: dict[str, Any] = {name: batch[name] for name in _INPUTS if name in batch}
        return self.auxiliary.call(model, {**inputs, **self._no_cache}, batch["input_ids"])


def _spread(found: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(1, places) → (batch, length), 0 elsewhere."""
    empty = found.new_zeros(batch["labels"].numel())
    return empty.index_copy(0, batch["places"], found[0]).view(batch["labels"].shape)
