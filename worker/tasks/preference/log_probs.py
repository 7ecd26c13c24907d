"""The log-probabilities of whole answers under a causal language model."""

import inspect
from typing import Any

import torch
from torch.nn import functional

from worker.tasks.common.token_scores import IGNORED
from worker.training import auxiliary_loss
from worker.training.kernels import chunked_cross_entropy, chunked_log_probs, selective_head
from worker.training.objective import Batch


class AnswerLogProbs:
    """`linear`: the head of the bare `model` if log-probabilities can be computed from the head's
    input, else None."""

    def __init__(self, model: Any, linear: torch.nn.Linear | None) -> None:
        self._bare_model = model
        self.auxiliary = auxiliary_loss.find(model, linear)
        self.linear = None if self.auxiliary.needs_logits else linear
        self.rows: int | None = None
        caches = "use_cache" in inspect.signature(model.forward).parameters
        self._no_cache = {"use_cache": False} if caches else {}

    def sums(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """The sum over the labels of each row of a batch of `sequence_batches`, (rows,) float32."""
        ids, places = batch["input_ids"], batch["places"]
        tokens = self._of_tokens(model, batch, _following(batch).flatten().index_select(0, places))
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


def token_counts(batch: Batch) -> torch.Tensor:
    """Labels of each row, (rows,) float32; 1 for a row without any."""
    return (_following(batch) != IGNORED).sum(dim=1).clamp(min=1).float()


def _following(batch: Batch) -> torch.Tensor:
    """(rows, length) the token that follows each; IGNORED if that is not a label."""
    return functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
