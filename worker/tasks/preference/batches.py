"""Features of answers, with what the reference model says about them."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.training.objective import Features


class WithReference(Sequence[Mapping[str, Any]]):
    """Features with the log-probabilities that the reference gives to their sequences."""

    def __init__(self, features: Features) -> None:
        self.viewed = features
        self.values: Any = None
        """(features, sequences) float32; None: 0 each."""

    def __len__(self) -> int:
        return len(self.viewed)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Mapping[str, Any]]:
        features: Any = self.viewed
        several = getattr(features, "__getitems__", None)  # Arrow reads them all at once
        rows = [features[index] for index in indices] if several is None else several(indices)
        return [
            {**row, "reference": self._of(index, len(row["lengths"]))}
            for row, index in zip(rows, indices, strict=True)
        ]

    def _of(self, index: int, sequences: int) -> Any:
        return [0.0] * sequences if self.values is None else self.values[index]
