"""The task `reward`: a model with one output, the reward of a conversation, from pairs of answers.

The head reads the last token that is not padding, as transformers' own classifiers do, so the
finished model gives the same numbers in their `text-classification` pipeline.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.functional import logsigmoid

from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST
from service.contract.tasks.preference import RewardSpec
from worker.failures import invalid_option
from worker.tasks.base import (
    PrepareContext,
    PreparedSplit,
    Task,
    parameters_of,
    train_features,
)
from worker.tasks.chat import answers, templates
from worker.tasks.common import predictions, sequence_batches
from worker.tasks.describe import Describer
from worker.tasks.preference import features, rows, samples
from worker.tasks.preference.dropout import disable_dropout
from worker.tasks.preference.features import MARGIN
from worker.tasks.preference.tokenizing import RowTokenizer
from worker.training.objective import SEQUENCES, Batch, Evaluation, Features, Forward, Objective

_INPUTS: Final = ("input_ids", "attention_mask")
_FORMAT_VERSION: Final = 2  # of the features; a new version prepares data again


class Reward(Task):
    name = "reward"
    length_option = "max_length"
    auto_class = "AutoModelForSequenceClassification"
    needs_pad_token = False
    tokenizes_rows = True

    def max_length(self, parameters: RewardSpec, limit: int | None) -> int:
        return parameters.max_length or limit or answers.DEFAULT_LIMIT

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:
        return features.answers_in_words(describer, feature)

    def config_overrides(
        self,
        spec: JobSpec,  # noqa: ARG002
        splits: Mapping[str, PreparedSplit],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        return {"id2label": {0: "reward"}, "label2id": {"reward": 0}}

    def example_schema(self) -> Any:
        from datasets import Value

        return features.example_schema({**rows.example_schema(), MARGIN: Value("float32")})

    def row_tokenizer(
        self,
        spec: JobSpec,
        tokenizer: Any,
        max_length: int,
        split: str,  # noqa: ARG002
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        padding(tokenizer)
        return RowTokenizer(tokenizer, parameters_of(spec, RewardSpec), max_length)

    def tokenization_settings(self, parameters: RewardSpec) -> Mapping[str, Any]:
        return {
            "format": _FORMAT_VERSION,
            "length": "option" if parameters.max_length is not None else "from rows",
            "chat_template": templates.setting(parameters.chat_template),
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        return features.write_pairs(split, examples, context, target)

    def set_up(self, tokenizer: Any, model: Any) -> None:
        """Both are saved: without a pad token the head refuses batches, in a pipeline as well."""
        tokenizer.pad_token_id = model.config.pad_token_id = padding(tokenizer)

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> "RewardObjective":
        disable_dropout(model)
        parameters = parameters_of(spec, RewardSpec)
        answers.keep_template(tokenizer, parameters.chat_template)
        return RewardObjective(parameters, padding(tokenizer), splits)


def padding(tokenizer: Any) -> int:
    """The tokenizer's pad token, or EOS. StageError(invalid_option) without either."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    found = next((number for number in candidates if number is not None), None)
    if found is None:
        raise invalid_option(
            "model.tokenizer_name",
            "has neither a pad token nor an EOS token, and the reward is read at the last token "
            "before the padding: give a tokenizer with one of them",
        )
    return int(found)


class RewardObjective(Objective):
    """Features of pairs have two sequences, the chosen one first; those to score may have one."""

    logged = ("accuracy", "margin", "mean_reward")

    def __init__(
        self, parameters: RewardSpec, fill: int, splits: Mapping[str, PreparedSplit]
    ) -> None:
        self._centering = parameters.center_rewards_coefficient or 0.0
        self._fill = fill
        self._splits = splits
        self.train_features: Features = train_features(splits)

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        whole = sequence_batches.collate(features, self._fill)
        batch = {name: whole[name] for name in (*_INPUTS, SEQUENCES)}
        if features[0].get(MARGIN) is not None:
            margins = [feature[MARGIN] for feature in features]
            batch[MARGIN] = torch.tensor(margins, dtype=torch.float32)
        return batch

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        margins = {MARGIN: batch[MARGIN][:rows]} if MARGIN in batch else {}
        return sequence_batches.first_examples(batch, rows) | margins

    def item_count(self, batch: Batch) -> int:
        return len(batch[SEQUENCES])

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return self.loss_and_values(model, batch)[0]

    def loss_and_values(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, rejected = _rewards(model, batch).view(-1, 2).unbind(dim=1)
        with torch.no_grad():
            sums = torch.stack(list(_values(chosen, rejected).values())).double().sum(dim=1)
            pairs = torch.full_like(sums, len(chosen))
        losses = self._losses(chosen, rejected, _margins(batch))
        return losses.sum(), torch.stack((sums, pairs))

    def _losses(
        self, chosen: torch.Tensor, rejected: torch.Tensor, margins: torch.Tensor
    ) -> torch.Tensor:
        """Bradley and Terry's with the margin of Llama 2 (Touvron et al. 2023, arXiv:2307.09288),
        (pairs,)."""
        centering = self._centering * (chosen + rejected) ** 2
        return centering - logsigmoid(chosen - rejected - margins)

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data = self._splits[split]
        found: list[Sequence[float]] = [()] * len(data.features)
        margins = torch.zeros(len(data.features))
        for indices, (rewards, counts, own) in forward(data.features, self.collate, _scored):
            margins[indices] = own.cpu()
            parts = rewards.cpu().split(counts.tolist())
            for index, part in zip(indices, parts, strict=True):
                found[index] = part.tolist()
        listed = [_as_row(number, each) for number, each in enumerate(found, start=1)]
        are_pairs = all(len(each) == 2 for each in found)
        assert are_pairs or split == TEST, "the cleaner has checked it"
        return Evaluation(
            self._metrics(torch.tensor(found), margins) if are_pairs else {},
            predictions.write(listed, split, folder),
            samples.of_rows(listed, data.examples),
        )

    def _metrics(self, rewards: torch.Tensor, margins: torch.Tensor) -> dict[str, float]:
        """`rewards`: (pairs, 2)."""
        chosen, rejected = rewards.unbind(dim=1)
        losses = self._losses(chosen, rejected, margins)
        columns = {"loss": losses, **_values(chosen, rejected)}
        return {
            **{name: float(column.double().mean()) for name, column in columns.items()},
            "min_reward": float(rewards.min()),
            "max_reward": float(rewards.max()),
        }


def _rewards(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """(rows,) float32, even under autocast."""
    logits: torch.Tensor = model(**{name: batch[name] for name in _INPUTS}).logits
    return logits[:, 0].float()


def _margins(batch: Batch) -> torch.Tensor:
    """(features,); 0 without any."""
    given = batch.get(MARGIN)
    return torch.zeros_like(batch[SEQUENCES], dtype=torch.float32) if given is None else given


def _scored(
    model: torch.nn.Module, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _rewards(model, batch), batch[SEQUENCES], _margins(batch)


def _values(chosen: torch.Tensor, rejected: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is logged, by TRL's names: (pairs,) each."""
    return {
        "accuracy": (chosen > rejected).float(),
        "margin": chosen - rejected,
        "mean_reward": (chosen + rejected) / 2,
    }


def _as_row(number: int, rewards: Sequence[float]) -> dict[str, Any]:
    names = ("reward",) if len(rewards) == 1 else ("chosen_reward", "rejected_reward")
    return {"row": number, **dict(zip(names, rewards, strict=True))}
