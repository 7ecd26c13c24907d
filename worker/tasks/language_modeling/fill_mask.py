"""Predictions of a masked language model: candidates for the mask tokens of each row."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.tasks.parameters import MaskedLMSpec
from worker.tasks.base import PrepareContext, PreparedSplit, parameters_of
from worker.tasks.common import feature_file, predictions
from worker.tasks.common.padding import Padding
from worker.tasks.common.predictions import PredictsOnly
from worker.tasks.language_modeling.masked_lm import MaskedLM, require_mask_token
from worker.training.objective import Batch, Evaluation, Forward, Objective

_FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again


class FillMask(MaskedLM):
    """Masked language modelling with `mode: predict`."""

    def tokenization_settings(self, parameters: MaskedLMSpec) -> Mapping[str, Any]:  # noqa: ARG002
        return {"own_masks": _FORMAT_VERSION}

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        require_mask_token(context.tokenizer)

        def columns(first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
            return _masked_texts(context, split, first, rows["text"])

        schema = feature_file.inputs(context.tokenizer)
        return feature_file.write(examples, columns, schema, context, target)

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        top_k = parameters_of(spec, MaskedLMSpec).top_k
        return FillMaskObjective(tokenizer, splits, Padding(tokenizer, model), top_k)


def _masked_texts(
    context: PrepareContext, split: str, first: int, texts: Sequence[str]
) -> Mapping[str, Any]:
    tokenizer = context.tokenizer
    whole = tokenizer(list(texts), return_attention_mask=False, verbose=False)["input_ids"]
    lengths = [len(ids) for ids in whole]
    cut = sum(length > context.max_length for length in lengths)
    context.measures.tokens.add(lengths, cut)
    encoded = tokenizer(
        list(texts), truncation=True, max_length=context.max_length, return_attention_mask=False
    )
    for number, ids in enumerate(encoded["input_ids"]):
        if tokenizer.mask_token_id not in ids:
            is_cut = tokenizer.mask_token in texts[number]
            where = f" within its first {context.max_length} tokens" if is_cut else ""
            raise StageError(
                FailureCode.UNREADABLE_ROW,
                f"Row {first + number + 1} of the {split} split has no {tokenizer.mask_token}"
                f"{where}: `masked-lm` predicts the tokens under the masks",
                row=first + number + 1,
            )
    return {name: encoded[name] for name in feature_file.inputs(tokenizer)}


class FillMaskObjective(PredictsOnly):
    """Fills masks; cannot be trained."""

    def __init__(
        self, tokenizer: Any, splits: Mapping[str, PreparedSplit], padding: Padding, top_k: int
    ) -> None:
        self._tokenizer = tokenizer
        self._splits = splits
        self._padding = padding
        self._top_k = top_k

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        return self._padding.inputs(features)

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data = self._splits[split]
        masks: list[list[Any]] = [[] for _ in range(len(data.features))]
        for indices, found in forward(data.features, self.collate, self._fill):
            for index, filled in zip(indices, self._by_row(*found), strict=True):
                masks[index] = filled
        rows = [
            {"row": number, "text": example["text"], "masks": filled}
            for number, (example, filled) in enumerate(
                zip(data.examples, masks, strict=True), start=1
            )
        ]
        files = predictions.write(rows, split, folder)
        return Evaluation({}, files, predictions.samples(rows, data.examples))

    def _fill(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(masks, k) probabilities and token ids; (batch,) number of masks per row."""
        masked = batch["input_ids"] == self._tokenizer.mask_token_id
        probabilities = model(**batch).logits[masked].float().softmax(dim=-1)
        best = probabilities.topk(min(self._top_k, probabilities.shape[-1]))
        return best.values, best.indices, masked.sum(dim=1)

    def _by_row(
        self, scores: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor
    ) -> list[list[Any]]:
        """For each row its masks, each a list of candidates, the most likely first."""
        pairs = zip(scores.tolist(), tokens.tolist(), strict=True)
        masks = iter([self._candidates(*pair) for pair in pairs])
        return [[next(masks) for _ in range(count)] for count in counts.tolist()]

    def _candidates(self, scores: list[float], tokens: list[int]) -> list[dict[str, Any]]:
        """With the keys of transformers' fill-mask pipeline."""
        return [
            {"token_str": self._tokenizer.decode([token]), "token": token, "score": score}
            for score, token in zip(scores, tokens, strict=True)
        ]
