"""Causal language modelling: predict each token from those before it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import is_validation
from service.contract.tasks.parameters import CausalLMSpec
from worker.tasks import describe
from worker.tasks.base import (
    PrepareContext,
    PreparedSplit,
    Task,
    parameters_of,
)
from worker.tasks.common import predictions, sequence_batches
from worker.tasks.common.token_scores import IGNORED, key_of_each
from worker.tasks.describe import Describer
from worker.tasks.language_modeling import features as lm_features
from worker.tasks.language_modeling import row_features
from worker.tasks.language_modeling import samples as lm_samples
from worker.tasks.language_modeling.next_token import NextTokenObjective
from worker.training import build
from worker.training.loss import chunked_cross_entropy
from worker.training.objective import Batch, Evaluation, Forward, Objective

_PROBE_LENGTH: Final = 4
_PROBE_TOLERANCE: Final = 0.05


class CausalLM(Task):
    name = "causal-lm"
    length_option = "block_size"
    default_length = lm_features.DEFAULT_LENGTH
    auto_class = "AutoModelForCausalLM"
    needs_pad_token = False

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:  # noqa: ARG002
        return "each token, predicted from the tokens before it"

    def trained(self, feature: Mapping[str, Any]) -> list[bool]:
        return describe.following(feature)

    def example_schema(self) -> Any:
        return lm_features.example_schema()

    def tokenization_settings(self, parameters: CausalLMSpec) -> Mapping[str, Any]:
        return {
            "format": lm_features.FORMAT_VERSION,
            "separate_documents": parameters.separate_documents,
            "keep_linebreaks": parameters.keep_linebreaks,
            "packing": parameters.packing,
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        parameters = parameters_of(context.spec, CausalLMSpec)
        if parameters.packing == "bfd":
            return row_features.write(split, examples, context, target)
        starts: lm_features.Starts | None = "rows" if parameters.separate_documents else None
        return lm_features.write_blocks(split, examples, context, target, starts)

    def bind(
        self,
        spec: JobSpec,
        tokenizer: Any,
        model: Any,
        splits: Mapping[str, PreparedSplit],
    ) -> Objective:
        parameters = parameters_of(spec, CausalLMSpec)
        linear = chunked_cross_entropy.plain_head(model) if build.may_capture_head(spec) else None
        if parameters.packing == "bfd":
            return PackedCausalLMObjective(splits, model, tokenizer, linear)
        if parameters.separate_documents:
            require_separable(model)
        return CausalLMObjective(splits, model, tokenizer, linear)


class CausalLMObjective(NextTokenObjective):
    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        model: Any,
        tokenizer: Any,
        linear: torch.nn.Linear | None = None,
    ) -> None:
        """`linear`: as for NextTokenObjective."""
        super().__init__(splits, model, linear)
        self._tokenizer = tokenizer

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Blocks of equal length; `labels` are the tokens themselves, not shifted. The first token
        of a document is not a label: no token of the document precedes it."""
        ids = torch.from_numpy(np.array([each["input_ids"] for each in features], dtype=np.int64))
        batch = {"input_ids": ids, "labels": ids.clone()}
        if "starts" in features[0]:
            starts = torch.from_numpy(np.array([each["starts"] for each in features], np.bool_))
            starts[:, 0] = True  # the first token of a block always starts a document
            batch["position_ids"] = document_positions(starts)
            batch["labels"][starts] = IGNORED
        return batch

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        features = self._splits[split].features
        scores, metrics = self._scores(features, forward)
        files = predictions.write(scores.rows(key_of_each(features)), split, folder)
        if not is_validation(split):
            return Evaluation(metrics, files)
        samples = lm_samples.continuations(features, self._tokenizer, forward, self._logits)
        return Evaluation(metrics, files, samples)

    def _logits(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = self._output(model, batch).logits
        return logits

    def _output(self, model: torch.nn.Module, batch: Batch) -> Any:
        if "position_ids" in batch:
            dtype = next(model.parameters()).dtype
            mask = document_mask(batch["position_ids"], dtype)
            batch = {**batch, "attention_mask": mask}
        return super()._output(model, batch)


class PackedCausalLMObjective(CausalLMObjective):
    """With `packing: bfd`: rows are sequences of their own."""

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        return sequence_batches.collate(features, fill=0)


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
