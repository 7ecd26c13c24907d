"""Masked language modelling: predict masked tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import is_validation
from service.contract.tasks.parameters import MaskedLMSpec
from worker.tasks.base import (
    PrepareContext,
    PreparedSplit,
    Task,
    parameters_of,
    train_features,
)
from worker.tasks.common import predictions
from worker.tasks.common.padding import Padding
from worker.tasks.common.token_loss import TokenLabels
from worker.tasks.common.token_scores import (
    IGNORED,
    Scores,
    TokenResults,
    key_of_each,
    token_results,
)
from worker.tasks.describe import Describer
from worker.tasks.language_modeling import features as lm_features
from worker.tasks.language_modeling import samples
from worker.tasks.language_modeling.masking import EpochMasks, MaskedFeatures, Masking
from worker.training import build
from worker.training.kernels import selective_head
from worker.training.objective import Batch, Evaluation, Forward, Objective


class MaskedLM(Task):
    name = "masked-lm"
    length_option = "max_seq_length"
    default_length = lm_features.DEFAULT_LENGTH
    auto_class = "AutoModelForMaskedLM"

    def needs_offsets(self, parameters: MaskedLMSpec) -> str | None:
        if not parameters.whole_word_mask:
            return None
        return "which word each token belongs to, which `task.whole_word_mask` needs"

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:  # noqa: ARG002
        share = parameters_of(describer.spec, MaskedLMSpec).mlm_probability
        return f"{share:.0%} of the tokens, chosen anew in each batch"

    def trained_count(self, describer: Describer, feature: Mapping[str, Any]) -> float:
        special = set(describer.tokenizer.all_special_ids)
        share = parameters_of(describer.spec, MaskedLMSpec).mlm_probability
        return share * sum(token not in special for token in feature["input_ids"])

    def example_schema(self) -> Any:
        return lm_features.example_schema()

    def tokenization_settings(self, parameters: MaskedLMSpec) -> Mapping[str, Any]:
        return {
            "format": lm_features.FORMAT_VERSION,
            "line_by_line": parameters.line_by_line,
            "words": parameters.whole_word_mask,
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        require_mask_token(context.tokenizer)
        parameters = parameters_of(context.spec, MaskedLMSpec)
        starts: lm_features.Starts | None = "words" if parameters.whole_word_mask else None
        write = lm_features.write_lines if parameters.line_by_line else lm_features.write_blocks
        return write(split, examples, context, target, starts)

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        parameters = parameters_of(spec, MaskedLMSpec)
        masking = Masking.for_tokenizer(tokenizer, spec.training.seed, parameters.mlm_probability)
        selects = build.may_be_padding_free(spec) and selective_head.can_select(model)
        bare_model = model if selects else None
        padding = Padding(tokenizer, model)
        return MaskedLMObjective(splits, masking, padding, tokenizer, bare_model)


def require_mask_token(tokenizer: Any) -> None:
    if tokenizer.mask_token_id is None:
        raise StageError(
            FailureCode.INVALID_OPTION,
            "The tokenizer has no mask token: choose a model that was trained for `masked-lm`",
        )


class MaskedLMObjective(TokenLabels):
    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        masking: Masking,
        padding: Padding,
        tokenizer: Any,
        bare_model: Any = None,
    ) -> None:
        """`bare_model`: None unless its head can be computed for the masked tokens alone."""
        super().__init__(splits, EpochMasks(train_features(splits), masking), padding)
        self._bare_model = bare_model
        self._masking = masking
        self._tokenizer = tokenizer

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Adds the `places` of the masked tokens if the head is computed for them alone."""
        batch = super().collate(features)
        if self._bare_model is None:
            return batch
        masked = batch["labels"] != IGNORED
        unmasked = ~masked & batch["attention_mask"].bool()
        return {**batch, "places": selective_head.positions_of(masked, unmasked)}

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        """`places` are indices into the flattened batch."""
        cut = {name: value[:rows] for name, value in batch.items() if name != "places"}
        if "places" in batch:
            cut["places"] = selective_head.before(batch["places"], cut["labels"].numel())
        return cut

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, masked, vocabulary) and (1, masked), with a few unmasked tokens, if the head is
        computed for masked tokens alone; else the logits and labels of all tokens."""
        if self._bare_model is None:
            return super().logits_and_labels(model, batch)
        inputs = {n: value for n, value in batch.items() if n not in {"labels", "places"}}
        places = batch["places"]
        labels = batch["labels"].flatten().index_select(0, places)
        with selective_head.only_at(self._bare_model, places, batch["attention_mask"]):
            return model(**inputs).logits, labels[None]

    def _token_results(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[TokenResults, torch.Tensor, torch.Tensor]:
        """The results of the masked tokens, even if the head computed others as well; (masked,
        candidates) token ids; the labels."""
        logits, own = self.logits_and_labels(model, batch)
        selected, labels = own != IGNORED, batch["labels"]
        logits, own = logits[selected], own[selected]
        masked = labels != IGNORED
        losses = torch.zeros(labels.shape, device=labels.device)
        correct = torch.zeros_like(masked)
        losses[masked], correct[masked] = token_results(logits, own)
        return TokenResults(losses, correct), samples.most_likely(logits), labels

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        """Every evaluation uses the same masks."""
        if split not in self._splits:
            return None
        features = MaskedFeatures(self._splits[split].features, self._masking)
        scores = Scores(len(features))
        masks = samples.Masks(features, self._tokenizer)
        for indices, (found, likely, labels) in forward(
            features, self.collate, self._token_results
        ):
            scores.add(indices, found, labels)
            masks.add(indices, likely, labels)
        keys = key_of_each(self._splits[split].features)
        files = predictions.write(scores.rows(keys), split, folder)
        if not is_validation(split):
            return Evaluation(scores.metrics(), files)
        return Evaluation(scores.metrics(), files, masks.rows(keys))
