"""What training on preferences has in common, whichever the loss: batches and the reference."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from service.contract.preference import PreferenceSpec
from service.contract.splits import TRAIN
from worker.tasks.base import PreparedSplit
from worker.tasks.common import sequence_batches
from worker.tasks.preference.batches import WithReference
from worker.tasks.preference.log_probs import AnswerLogProbs
from worker.training.objective import SEQUENCES, Batch, Features, Forward, Objective

Floats = npt.NDArray[np.float32]
FILL: Final = 0
"""The id of padding: any, because the attention mask hides it."""
REFERENCE: Final = "reference"


class PreferenceObjective(Objective):
    """Features have two sequences each."""

    def __init__(
        self,
        parameters: PreferenceSpec,
        splits: Mapping[str, PreparedSplit],
        model: Any,
        linear: torch.nn.Linear | None,
    ) -> None:
        """`linear`: as for AnswerLogProbs."""
        self.parameters = parameters
        self._log_probs = AnswerLogProbs(model, linear)
        self.auxiliary = self._log_probs.auxiliary
        self.linear = self._log_probs.linear
        self._splits = splits
        self._features = {name: WithReference(split.features) for name, split in splits.items()}
        self.train_features: Features = self._features.get(TRAIN, [])

    @property
    def rows(self) -> int | None:
        return self._log_probs.rows

    @rows.setter
    def rows(self, rows: int | None) -> None:
        self._log_probs.rows = rows

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        batch = sequence_batches.collate(features, FILL)
        values = np.array([feature[REFERENCE] for feature in features], dtype=np.float32)
        return {**batch, REFERENCE: torch.from_numpy(values)}

    def first_rows(self, batch: Batch, rows: int) -> Batch:
        cut = sequence_batches.first_examples(batch, rows)
        return {**cut, REFERENCE: batch[REFERENCE][:rows]}

    def item_count(self, batch: Batch) -> int:
        return len(batch[SEQUENCES])

    def sums(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """(features, 2) log-probabilities of the sequences."""
        return self._log_probs.sums(model, batch).view(-1, 2)

    @property
    def reference_splits(self) -> tuple[str, ...]:
        return tuple(self._features) if self.parameters.needs_reference() else ()

    def reference_values(self, split: str, forward: Forward) -> Floats:
        def run(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
            with _without_adapter(model):
                return self.sums(model, batch)

        features = self._features[split]
        found = np.zeros((len(features), 2), dtype=np.float32)
        for indices, values in forward(features, self.collate, run):
            found[indices] = values.cpu().numpy()
        return found

    def use_reference(self, split: str, values: Floats) -> None:
        self._features[split].values = values


def _without_adapter(model: Any) -> AbstractContextManager[None]:
    """The base model alone, if `model` is peft's."""
    disabled: Callable[[], AbstractContextManager[None]] = getattr(
        model, "disable_adapter", nullcontext
    )
    return disabled()
