"""Each process's share of every batch, padded like the whole batch.

A model's output for an example may depend on the padding: the softmax of a span head includes it.
With the padding of the whole batch, several processes compute the same as one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from service.contract.spec.training import TrainingSpec
from worker.training.batches.dataloader import Loader
from worker.training.batches.samplers import lengths
from worker.training.distributed.ranks import Ranks
from worker.training.objective import Batch, Objective


class Share(NamedTuple):
    """One process's share of a batch."""

    batch: Batch
    """On the CPU."""
    is_own: bool = True
    """False for a process whose share is empty: it gets another's example, whose loss does not
    count."""


class RankShares:
    """Loads this process's shares of the batches of an objective's training features."""

    def __init__(self, objective: Objective, spec: TrainingSpec, ranks: Ranks) -> None:
        features = objective.train_features
        self._loader = Loader(features, objective.collate, spec)
        self._cut = objective.first_rows
        self._ranks = ranks
        self._lengths = lengths(features) if ranks.world_size > 1 else np.zeros(0, dtype=np.int64)

    def over(self, batches: Sequence[list[int]], epoch: int) -> Iterator[Share]:
        """One share for each batch (a list of indices); their sizes differ by at most 1."""
        if self._ranks.world_size == 1:
            yield from map(Share, self._loader.over(batches, epoch))
            return
        own = [self._ranks.shard(batch) for batch in batches]
        # The longest example is added for its length, and for processes without an example of a
        # short last batch, because all must take part.
        longest = [max(batch, key=self._lengths.__getitem__) for batch in batches]
        joined = [[*share, one] for share, one in zip(own, longest, strict=True)]
        for share, batch in zip(own, self._loader.over(joined, epoch), strict=True):
            rows = max(len(share), 1)
            yield Share(self._cut(batch, rows), bool(share))
