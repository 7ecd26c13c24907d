"""Causal language modelling: predict each token from those before it."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from service.contract.failures import FailureCode, StageError
from service.contract.parameters import CausalLMSpec
from service.contract.spec import JobSpec
from service.contract.splits import is_validation
from worker.tasks.base import (
    PrepareContext,
    PreparedSplit,
    longest,
    parameters_of,
    train_features,
)
from worker.tasks.common import predictions
from worker.tasks.common.token_scores import IGNORED, Scores, TokenResults, token_results
from worker.tasks.language_modeling import features as lm_features
from worker.tasks.language_modeling import samples as lm_samples
from worker.training import build, label_smoothing
from worker.training.kernels import chunked_cross_entropy
from worker.training.objective import Batch, Evaluation, Features, Forward, Objective

_PROBE_LENGTH: Final = 4
_PROBE_TOLERANCE: Final = 0.05


class CausalLM:
    name = "causal-lm"
    length_option = "block_size"
    needs_pad_token = False

    def needs_offsets(self, parameters: CausalLMSpec) -> str | None:  # noqa: ARG002
        return None

    def max_length(self, parameters: CausalLMSpec, limit: int | None) -> int:
        return longest(parameters.block_size, limit, lm_features.DEFAULT_LENGTH)

    def auto_model(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM

    def example_schema(self) -> Any:
        return lm_features.example_schema()

    def tokenization_settings(self, parameters: CausalLMSpec) -> Mapping[str, Any]:
        return {
            "format": lm_features.FORMAT_VERSION,
            "separate_documents": parameters.separate_documents,
            "keep_linebreaks": parameters.keep_linebreaks,
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        separate = parameters_of(context.spec, CausalLMSpec).separate_documents
        starts: lm_features.Starts | None = "rows" if separate else None
        return lm_features.write_blocks(split, examples, context, target, starts)

    def bind(
        self,
        spec: JobSpec,
        tokenizer: Any,
        model: Any,
        splits: Mapping[str, PreparedSplit],
    ) -> Objective:
        if parameters_of(spec, CausalLMSpec).separate_documents:
            require_separable(model)
        linear = chunked_cross_entropy.plain_head(model) if build.may_capture_head(spec) else None
        return CausalLMObjective(splits, model, tokenizer, linear)


class CausalLMObjective:
    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        model: Any,
        tokenizer: Any,
        linear: torch.nn.Linear | None = None,
    ) -> None:
        """`linear`: the head of the bare `model` if the loss can be computed from the head's input,
        else None."""
        self._bare_model = model
        self.linear = linear
        self.rows: int | None = None
        self._splits = splits
        self._tokenizer = tokenizer
        caches = "use_cache" in inspect.signature(model.forward).parameters
        self._no_cache = {"use_cache": False} if caches else {}
        self.train_features: Features = train_features(splits)

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Blocks of equal length; `labels` are the tokens themselves, not shifted."""
        return {**_inputs(features), "labels": _labels(features)}

    def item_count(self, batch: Batch) -> int:
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return self.smoothed_loss_sum(model, batch, 0.0)

    def smoothed_loss_sum(
        self, model: torch.nn.Module, batch: Batch, factor: float
    ) -> torch.Tensor:
        """Without the logits of the whole batch if possible."""
        linear = self._head()
        if linear is None:
            return label_smoothing.cross_entropies(*self.logits_and_labels(model, batch), factor)
        head, labels = self._head_input(model, batch)
        return chunked_cross_entropy.loss_sum(linear, head, labels, factor, self.rows)

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of each token, and the token that follows it."""
        return self._output(model, batch).logits[:, :-1], batch["labels"][:, 1:]

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        features = self._splits[split].features
        scores = Scores(len(features))
        for indices, (found, labels) in forward(features, self.collate, self._token_results):
            scores.add(indices, found, labels)
        rows = scores.rows([{"block": number} for number in range(len(features))])
        files = predictions.write(rows, split, folder)
        if not is_validation(split):
            return Evaluation(scores.metrics(), files)
        samples = lm_samples.continuations(features, self._tokenizer, forward, self._logits)
        return Evaluation(scores.metrics(), files, samples)

    def _head(self) -> torch.nn.Linear | None:
        """The head, if the logits of the whole batch are not needed."""
        return chunked_cross_entropy.current_head(self._bare_model, self.linear)

    def _head_input(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[chunked_cross_entropy.HeadInput, torch.Tensor]:
        """The head's input, and the token that follows each token."""
        head = chunked_cross_entropy.head_input(
            self._bare_model, lambda: self._output(model, batch)
        )
        return head, functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)

    def _token_results(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[TokenResults, torch.Tensor]:
        """The results for each token, and the tokens themselves."""
        linear = self._head()
        if linear is None:
            logits, labels = self.logits_and_labels(model, batch)
            return token_results(logits, labels), labels
        head, labels = self._head_input(model, batch)
        return TokenResults(
            *chunked_cross_entropy.map_chunks(linear, head, labels, token_results, self.rows)
        ), labels

    def _logits(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = self._output(model, batch).logits
        return logits

    def _output(self, model: torch.nn.Module, batch: Batch) -> Any:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        if "position_ids" in inputs:
            dtype = next(model.parameters()).dtype
            inputs["attention_mask"] = document_mask(inputs["position_ids"], dtype)
        return model(**inputs, **self._no_cache)


def _inputs(features: list[Mapping[str, Any]]) -> Batch:
    batch = {"input_ids": _stacked(features)}
    if "starts" in features[0]:
        batch["position_ids"] = document_positions(_starts(features))
    return batch


def _stacked(features: list[Mapping[str, Any]]) -> torch.Tensor:
    return torch.from_numpy(np.array([each["input_ids"] for each in features], dtype=np.int64))


def _starts(features: list[Mapping[str, Any]]) -> torch.Tensor:
    """(batch, length) bool; a block's first token always starts a document."""
    starts = torch.from_numpy(np.array([each["starts"] for each in features], dtype=np.bool_))
    starts[:, 0] = True
    return starts


def _labels(features: list[Mapping[str, Any]]) -> torch.Tensor:
    """The first token of a document is not a label: no token of the document precedes it."""
    labels = _stacked(features)
    if "starts" in features[0]:
        labels[_starts(features)] = IGNORED
    return labels


def document_positions(starts: torch.Tensor) -> torch.Tensor:
    """(batch, length): each token's position in its document; `starts` marks the first tokens."""
    places = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    return places - torch.where(starts, places, 0).cummax(dim=1).values


def document_mask(positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(batch, 1, length, length) mask to add to attention scores, so that no token attends to
    another document. `positions`: (batch, length), starting at 0 in each document.
    """
    documents = (positions == 0).cumsum(dim=1)
    visible = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
    mask = torch.zeros(visible.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)


@torch.no_grad()
def require_separable(model: Any) -> None:
    """Raises StageError(invalid_option) if the model cannot separate the documents of a block.

    The test: two short documents must give the same logits in one block as alone. It runs on the
    model's device, which for quantized weights is already the job's GPU.
    """
    device = next(model.parameters()).device
    ids = torch.arange(2 * _PROBE_LENGTH, device=device)[None]
    ids %= model.get_input_embeddings().num_embeddings
    starts = torch.zeros(ids.shape, dtype=torch.bool, device=device)
    starts[:, ::_PROBE_LENGTH] = True
    was_training = model.training
    model.eval()
    try:
        alone = torch.cat([model(input_ids=part).logits for part in ids.split(_PROBE_LENGTH, 1)], 1)
        joined = model(input_ids=ids).logits
        places = document_positions(starts)
        mask = document_mask(places, model.dtype)
        separate = model(input_ids=ids, position_ids=places, attention_mask=mask).logits
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise _inseparable(model) from error
    finally:
        model.train(was_training)
    # Relative to the effect of mixing the documents, so that the weights' scale is irrelevant.
    leak, mixed = ((each - alone).abs().max() for each in (separate, joined))
    if not leak <= _PROBE_TOLERANCE * mixed:
        raise _inseparable(model)


def _inseparable(model: Any) -> StageError:
    return StageError(
        FailureCode.INVALID_OPTION,
        f"`separate_documents` does not work with a model of type {model.config.model_type!r}: "
        "its attention cannot be limited to one document of a block",
        option="task.separate_documents",
    )
