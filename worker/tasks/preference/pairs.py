"""Training on pairs of answers by one of `losses.PAIRWISE`, and evaluating them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from service.contract.tasks.preference import PreferenceSpec
from worker.tasks.common import predictions
from worker.tasks.preference import losses, samples
from worker.tasks.preference.losses import Answers
from worker.tasks.preference.objective import REFERENCE, PreferenceObjective, token_counts
from worker.training.objective import Batch, Evaluation, Forward

VALUES: Final = (
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
)
"""TRL's names."""


class PairObjective(PreferenceObjective):
    """Each feature is a chosen and a rejected answer."""

    logged = VALUES

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return self.loss_and_values(model, batch)[0]

    def loss_and_values(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        answers = self._answers(model, batch)
        with torch.no_grad():
            values = torch.stack(list(_values(answers, self.parameters).values()))
        sums = values.double().sum(dim=1)
        pairs = torch.full_like(sums, values.shape[1])
        return _losses(answers, self.parameters).sum(), torch.stack((sums, pairs))

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data, features = self._splits[split], self._features[split]
        answers = torch.zeros(3, len(features), 2)
        scored = self.auxiliary.scored(forward)
        for indices, found in scored(features, self.collate, self._answers):
            answers[:, indices] = torch.stack(list(found)).cpu()
        parts = Answers(*answers)
        columns = {"loss": _losses(parts, self.parameters), **_values(parts, self.parameters)}
        metrics = {name: float(column.double().mean()) for name, column in columns.items()}
        rows = as_rows(columns)
        files = predictions.write(rows, split, folder)
        return Evaluation(scored.added(metrics), files, samples.of_rows(rows, data.examples))

    def _answers(self, model: torch.nn.Module, batch: Batch) -> Answers:
        """(pairs, 2) each: the chosen and the rejected ones."""
        sums = self.sums(model, batch)
        return Answers(sums, batch[REFERENCE], token_counts(batch).view(-1, 2))


def _losses(answers: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """(pairs,)"""
    return losses.PAIRWISE[spec.loss_type](*_sides(answers), spec)


def _sides(answers: Answers) -> tuple[Answers, Answers]:
    chosen, rejected = (Answers(*(each[:, side] for each in answers)) for side in (0, 1))
    return chosen, rejected


def _values(answers: Answers, spec: PreferenceSpec) -> dict[str, torch.Tensor]:
    """VALUES of each pair."""
    good, bad = (losses.rewards(side, spec) for side in _sides(answers))
    logs = losses.logged_log_probs(answers, spec)
    found = (good, bad, (good > bad).float(), good - bad, logs[:, 0], logs[:, 1])
    return dict(zip(VALUES, found, strict=True))


def as_rows(columns: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """For `predictions.json`."""
    lists = [column.tolist() for column in columns.values()]
    return [
        {"row": number, **dict(zip(columns, values, strict=True))}
        for number, values in enumerate(zip(*lists, strict=True), start=1)
    ]
