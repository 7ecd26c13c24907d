"""KTO: training on single answers that are good or bad, and evaluating them."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from service.contract.tasks.preference import PreferenceSpec
from worker.tasks.base import PrepareContext, PreparedSplit
from worker.tasks.common import feature_file, predictions, sequence_batches
from worker.tasks.preference import features, losses, samples
from worker.tasks.preference.features import DESIRABLE
from worker.tasks.preference.losses import Answers
from worker.tasks.preference.objective import FILL, REFERENCE, PreferenceObjective, token_counts
from worker.tasks.preference.pairs import as_rows
from worker.training.objective import Batch, Evaluation, Forward

_OTHER: Final = "other_"
"""Prefix of a batch's tensors for the other answers."""
_REWARD_OF_GOOD: Final = "rewards/chosen"
_REWARD_OF_BAD: Final = "rewards/rejected"
_MARGIN: Final = "rewards/margins"
_KTO_VALUES: Final = (_REWARD_OF_GOOD, _REWARD_OF_BAD, "logps/chosen", "logps/rejected", "kl")
"""TRL's names."""


def write(split: str, examples: Any, context: PrepareContext, target: Path) -> int:
    """One feature for each answer: its prompt with it, and its prompt with an answer of the row
    before, for the estimate of the divergence; in a pair that of its own kind. The first row gets
    those of the last one."""
    from datasets import Value

    features.report_how_joined(split, examples, context)
    cut = features.Cut(split, context)
    last = examples[len(examples) - 1]
    before = _without_prompt(last["input_ids"], last["start"])

    def columns(_first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal before
        made: list[Sequence[features.Part]] = []
        for answers, start in zip(rows["input_ids"], rows["start"], strict=True):
            others = [
                cut.part([*ids[:start], *before[place % len(before)]], start)
                for place, ids in enumerate(answers)
            ]
            made += zip(cut.row(answers, start), others, strict=True)
            before = _without_prompt(answers, start)
        return {**features.joined(made), DESIRABLE: list(chain(*rows["labels"]))}

    schema = {**features.schema(), DESIRABLE: Value("bool")}
    count = feature_file.write(examples, columns, schema, context, target)
    cut.report()
    return count


def _without_prompt(answers: Sequence[Sequence[int]], start: int) -> list[Sequence[int]]:
    return [ids[start:] for ids in answers]


class SingleAnswerObjective(PreferenceObjective):
    """Each feature is an answer, and another answer to the same prompt that belongs to another.

    KTO's loss needs the mean divergence of the other answers. It is that of all examples of an
    optimizer step, or of an evaluated split, so that batches of any size give the same.
    """

    logged = _KTO_VALUES
    needs_step_statistics = True

    def __init__(
        self,
        parameters: PreferenceSpec,
        splits: Mapping[str, PreparedSplit],
        model: Any,
        linear: torch.nn.Linear | None,
    ) -> None:
        super().__init__(parameters, splits, model, linear)
        self._divergence = torch.zeros(())

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        own, other = ([_sequence(each, side) for each in features] for side in (0, 1))
        others = sequence_batches.collate(other, FILL)
        known = np.array([feature[REFERENCE] for feature in features], dtype=np.float32)
        return {
            **sequence_batches.collate(own, FILL),
            **{f"{_OTHER}{name}": value for name, value in others.items()},
            REFERENCE: torch.from_numpy(known),
            DESIRABLE: torch.tensor([feature[DESIRABLE] for feature in features]),
        }

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        others = sequence_batches.first_examples(_others(batch), rows)
        own = {name: value for name, value in batch.items() if not name.startswith(_OTHER)}
        return {
            **sequence_batches.first_examples(own, rows),
            **{f"{_OTHER}{name}": value for name, value in others.items()},
        }

    def item_count(self, batch: Batch) -> int:
        return len(batch["input_ids"])

    def sums(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        parts = (self.log_probs(model, each) for each in (batch, _others(batch)))
        return torch.stack(list(parts), dim=1)

    def step_statistics(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """The sum of the other answers' log-ratios, and how many these are."""
        ratios = self.log_probs(model, _others(batch)) - batch[REFERENCE][:, 1]
        total = ratios.double().sum()
        return torch.stack((total, torch.full_like(total, len(ratios))))

    def use_step_statistics(self, sums: torch.Tensor) -> None:
        self._divergence = _mean_divergence(sums)

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return self.loss_and_values(model, batch)[0]

    def loss_and_values(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        known = batch[REFERENCE][:, 0]
        answers = Answers(self.log_probs(model, batch), known, token_counts(batch))
        divergence = self._divergence.to(known.device)
        loss = losses.kto(answers, batch[DESIRABLE], divergence, self.parameters).sum()
        with torch.no_grad():
            return loss, self._sums(answers, batch[DESIRABLE], divergence)

    def _sums(
        self, answers: Answers, desirable: torch.Tensor, divergence: torch.Tensor
    ) -> torch.Tensor:
        """Of `logged`: over the good and over the bad answers."""
        good = desirable.double()
        sides = torch.stack((good, 1 - good))
        rewards = losses.rewards(answers, self.parameters).double()
        totals = [(sides * each).sum(dim=1) for each in (rewards, answers.log_probs.double())]
        counts = sides.sum(dim=1)
        count = counts.sum(dim=0, keepdim=True)
        return torch.stack(
            (
                torch.cat((*totals, divergence.double() * count)),
                torch.cat((counts, counts, count)),
            )
        )

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data, features_ = self._splits[split], self._features[split]
        found = torch.zeros(len(features_), 2, 2)
        desirable = torch.zeros(len(features_), dtype=torch.bool)
        scored = self.auxiliary.scored(forward)
        for indices, (sums, known, good) in scored(features_, self.collate, self._compared):
            found[indices] = torch.stack((sums, known), dim=2).cpu()
            desirable[indices] = good.cpu()
        ratios = (found[:, 1, 0] - found[:, 1, 1]).double()
        count = torch.full((), len(ratios), dtype=torch.float64)
        divergence = _mean_divergence(torch.stack((ratios.sum(), count)))
        answers = Answers(found[:, 0, 0], found[:, 0, 1], torch.ones(len(found)))
        loss = losses.kto(answers, desirable, divergence, self.parameters)
        columns = {
            "row": _row_numbers(data.examples["labels"]),
            "loss": loss,
            "label": desirable,
            "reward": losses.rewards(answers, self.parameters),
            "logps": answers.log_probs,
        }
        rows = as_rows(columns)
        files = predictions.write(rows, split, folder)
        values = self._sums(answers, desirable, divergence)
        metrics = {"loss": float(loss.double().mean()), **self._metrics(*values)}
        made = samples.of_answers(rows, data.examples)
        return Evaluation(scored.added(metrics), files, made)

    def _metrics(self, sums: torch.Tensor, counts: torch.Tensor) -> dict[str, float]:
        columns = zip(self.logged, sums.tolist(), counts.tolist(), strict=True)
        means = {name: total / items for name, total, items in columns if items}
        return {**means, **self.derived(means)}

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The margin of the mean rewards, as in TRL only where there are both kinds of answers."""
        if not {_REWARD_OF_GOOD, _REWARD_OF_BAD} <= means.keys():
            return {}
        return {_MARGIN: means[_REWARD_OF_GOOD] - means[_REWARD_OF_BAD]}

    def _compared(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.sums(model, batch), batch[REFERENCE], batch[DESIRABLE]


def _mean_divergence(sums: torch.Tensor) -> torch.Tensor:
    """Not below 0, as a divergence; (sum, number) → a float32 scalar."""
    return (sums[0] / sums[1].clamp(min=1)).clamp(min=0).float()


def _row_numbers(labels: Sequence[Sequence[bool]]) -> torch.Tensor:
    """The row of each answer, from 1."""
    counts = torch.tensor([len(each) for each in labels])
    return torch.arange(1, len(counts) + 1).repeat_interleave(counts)


def _sequence(feature: Mapping[str, Any], side: int) -> Mapping[str, Any]:
    """One of the two sequences as a feature of its own."""
    first = feature["lengths"][0]
    part = slice(first) if side == 0 else slice(first, None)
    return {name: feature[name][part] for name in ("input_ids", "trained")}


def _others(batch: Batch) -> Batch:
    return {
        name.removeprefix(_OTHER): value for name, value in batch.items() if name.startswith(_OTHER)
    }
