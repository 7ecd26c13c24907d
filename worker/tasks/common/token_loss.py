"""Padding and loss for tasks with a label for each token."""

from collections.abc import Mapping
from typing import Any

import torch

from worker.tasks.base import PreparedSplit
from worker.tasks.common.padding import Padding
from worker.tasks.common.token_scores import IGNORED, losses
from worker.training.loss import label_smoothing
from worker.training.objective import Batch, Features, LossSum, Objective


class TokenLabels(Objective):
    """Features have one label per token in `labels`, IGNORED for tokens without one."""

    def __init__(
        self, splits: Mapping[str, PreparedSplit], train_features: Features, padding: Padding
    ) -> None:
        self._splits = splits
        self._padding = padding
        self.train_features = train_features

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        labels = self._padding.pad_rows([each["labels"] for each in features], IGNORED)
        return {**self._padding.inputs(features), "labels": labels}

    def item_count(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return losses(*self.logits_and_labels(model, batch)).sum()

    def smoothed(self, factor: float) -> LossSum:
        return label_smoothing.of_logits(self.logits_and_labels, factor)

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return model(**inputs).logits, batch["labels"]
