"""Each process's part of every batch, padded as the whole batch would be.

What a model makes of an example may depend on the padding: the span head's softmax reaches over it.
With the padding of the whole batch several processes compute what one would.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.contract.training import TrainingSpec
from worker.training.batches.dataloader import Loader
from worker.training.batches.samplers import lengths
from worker.training.distributed.ranks import Ranks
from worker.training.objective import Batch, CutsBatches, Objective


class Share(NamedTuple):
    """What one process does of a batch."""

    batch: Batch
    """On the CPU."""
    is_own: bool = True
    """False: another's example in the place of none; its loss counts for nothing."""


class Sharing:
    """Loads this process's shares of the batches of an objective's training features."""

    def __init__(self, objective: Objective, spec: TrainingSpec, ranks: Ranks) -> None:
        features = objective.train_features
        self._loader = Loader(features, objective.collate, spec)
        self._cut = objective.first_rows if isinstance(objective, CutsBatches) else _first_rows
        self._ranks = ranks
        self._lengths = lengths(features) if ranks.count > 1 else np.zeros(0, dtype=np.int64)

    def over(self, batches: Sequence[list[int]], epoch: int) -> Iterator[Share]:
        """One share for each batch, a list of indices; the shares' sizes differ by one at most."""
        if self._ranks.count == 1:
            yield from map(Share, self._loader.over(batches, epoch))
            return
        own = [self._ranks.share(batch) for batch in batches]
        # The longest comes along for its length, and for a process that has no example of a short
        # last batch, since each must take part.
        joined = [[*share, self._longest(b)] for share, b in zip(own, batches, strict=True)]
        for share, batch in zip(own, self._loader.over(joined, epoch), strict=True):
            rows = max(len(share), 1)
            yield Share(self._cut(batch, rows), bool(share))

    def _longest(self, batch: list[int]) -> int:
        place: Any = self._lengths[batch].argmax()
        return batch[int(place)]


def _first_rows(batch: Batch, rows: int) -> Batch:
    return {name: value[:rows] for name, value in batch.items()}
