"""Training on conversations, and their evaluation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from service.contract.tasks.chat import ChatSpec
from worker.tasks.base import PreparedSplit
from worker.tasks.chat import lengths
from worker.tasks.chat.answers import Answers
from worker.tasks.common import predictions, sequence_batches
from worker.tasks.common.generation import fill_token
from worker.tasks.common.list_columns import ListColumns
from worker.tasks.language_modeling.next_token import NextTokenObjective
from worker.training.objective import Batch, Evaluation, Forward


class ChatObjective(NextTokenObjective):
    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        model: Any,
        tokenizer: Any,
        parameters: ChatSpec,
        linear: torch.nn.Linear | None = None,
    ) -> None:
        """`linear`: as for NextTokenObjective."""
        super().__init__(splits, model, linear)
        self._fill = fill_token(tokenizer)
        self._answers = None
        if parameters.generate is not None:
            self._answers = Answers(model, tokenizer, parameters.generate)

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        return sequence_batches.collate(features, self._fill)

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        """Loss, perplexity and accuracy on trained tokens; answers if the job generates."""
        if split not in self._splits:
            return None
        data = self._splits[split]
        rows: list[dict[str, Any]] = [{"row": n + 1} for n in range(len(data.features))]
        metrics = self._score(data.features, rows, forward)
        samples: list[dict[str, Any]] = []
        if self._answers is not None:
            found = self._answers.generated(data, forward)
            metrics |= found.metrics
            samples = found.samples
            for number, answer in found.rows.items():
                rows[number] |= answer
        return Evaluation(metrics, predictions.write(rows, split, folder), samples)

    def _score(
        self, features: Any, rows: list[dict[str, Any]], forward: Forward
    ) -> dict[str, float]:
        """Add the scores to the `rows` that train a token; the metrics of all of them."""
        trained = ListColumns(features, ["trained"])
        longest = int(trained.lengths.max(initial=0))
        scored = np.flatnonzero(lengths.trained_within(trained, longest)).tolist()
        if not scored:
            return {}
        part = features if len(scored) == len(features) else features.select(scored)
        scores, metrics = self._scores(part, forward)
        for number, found in zip(scored, scores.rows([{}] * len(scored)), strict=True):
            rows[number] |= found
        return metrics
