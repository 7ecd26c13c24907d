"""Masked language modelling: restore tokens that were masked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from service.contract.failures import FailureCode, StageError
from service.contract.parameters import MaskedLMSpec
from service.contract.spec import JobSpec
from service.contract.splits import is_validation
from worker.tasks import lm_features, predictions
from worker.tasks.base import Cleaner, PrepareContext, PreparedSplit, parameters_of
from worker.tasks.lm_scores import IGNORED, Scores, losses
from worker.tasks.masking import EpochMasks, MaskedFeatures, Masking
from worker.tasks.padding import Padding
from worker.training.objective import Batch, Evaluation, Features, Forward, Objective


class MaskedLM:
    name = "masked-lm"
    length_option = "max_seq_length"
    needs_pad_token = True

    def max_length(self, parameters: MaskedLMSpec, limit: int | None) -> int:
        return parameters.max_seq_length or lm_features.default_length(limit)

    def auto_model(self) -> Any:
        from transformers import AutoModelForMaskedLM

        return AutoModelForMaskedLM

    def required_columns(self, split: str) -> tuple[str, ...]:  # noqa: ARG002
        return ("text",)

    def example_schema(self) -> Any:
        return lm_features.example_schema()

    def cleaner(self, split: str, parameters: MaskedLMSpec) -> Cleaner:  # noqa: ARG002
        return lm_features.clean

    def tokenization_settings(self, parameters: MaskedLMSpec) -> Mapping[str, Any]:
        return {
            "format": lm_features.FORMAT_VERSION,
            "line_by_line": parameters.line_by_line,
            "words": parameters.whole_word_mask,
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        if context.tokenizer.mask_token_id is None:
            raise StageError(
                FailureCode.INVALID_OPTION,
                "The tokenizer has no mask token: the model was not made for `masked-lm`",
            )
        parameters = parameters_of(context.spec, MaskedLMSpec)
        starts: lm_features.Starts | None = "words" if parameters.whole_word_mask else None
        write = lm_features.write_lines if parameters.line_by_line else lm_features.write_blocks
        return write(split, examples, context, target, starts)

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        parameters = parameters_of(spec, MaskedLMSpec)
        masking = Masking.of(tokenizer, spec.training.seed, parameters.mlm_probability)
        return MaskedLMObjective(splits, masking, Padding(tokenizer, model))


class MaskedLMObjective:
    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        masking: Masking,
        padding: Padding,
    ) -> None:
        self._splits = splits
        self._masking = masking
        self._padding = padding
        self.train_features: Features = EpochMasks(splits["train"].features, masking)

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        return {**self._padding.inputs(features), "labels": self._labels(features)}

    def item_count(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return losses(*self.logits_and_labels(model, batch)).sum()

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return model(**inputs).logits, batch["labels"]

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        """Under masks that are the same at every evaluation."""
        if split not in self._splits:
            return None
        features = MaskedFeatures(self._splits[split].features, self._masking)
        scores = Scores(len(features))
        for indices, output in forward(features, self._padding.inputs):
            labels = self._labels([features[index] for index in indices])
            scores.add(indices, output.logits, labels)
        rows = scores.rows(_keys(self._splits[split].features))
        return Evaluation(
            metrics=scores.metrics() if is_validation(split) else {},
            files=predictions.write(rows, split, folder),
        )

    def _labels(self, features: list[Mapping[str, Any]]) -> torch.Tensor:
        return self._padding.rectangle([each["labels"] for each in features], IGNORED)


def _keys(features: Any) -> list[dict[str, int]]:
    """What each feature is of: a row of the data, or a block of many."""
    if "row" in features.column_names:
        return [{"row": row} for row in features["row"]]
    return [{"block": number} for number in range(len(features))]
