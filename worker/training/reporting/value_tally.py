"""Further values that a training logs besides its loss: their means since the last log."""

import math
from collections.abc import Sequence

import torch

from worker.training.distributed.ranks import Ranks

Totals = list[list[float]]
"""The sum of each value, and of how many items it is the sum."""


class ValueTally:
    """Sums on the device, so that only logging and saving wait for it. Each process adds its own
    items."""

    def __init__(
        self,
        names: Sequence[str] = (),
        device: torch.device | None = None,
        totals: Sequence[Totals] = (),
        ranks: Ranks | None = None,
    ) -> None:
        """`totals`: saved result of the method `totals`, one for each process."""
        self.names = tuple(names)
        self._ranks = ranks or Ranks()
        saved = totals[self._ranks.rank] if totals else [[0.0] * len(self.names)] * 2
        self._sums = torch.tensor(saved, dtype=torch.float64, device=device)

    def add(self, sums: torch.Tensor | None) -> None:
        """Add a step's sums, (2, names); None if the objective has no further values."""
        if sums is not None:
            self._sums += sums

    def means(self) -> dict[str, float]:
        """Over all processes; values without an item are left out."""
        if not self.names:
            return {}
        found = self.totals()
        sums, items = (
            [math.fsum(column) for column in zip(*(own[part] for own in found), strict=True)]
            for part in (0, 1)
        )
        columns = zip(self.names, sums, items, strict=True)
        return {name: total / count for name, total, count in columns if count}

    def totals(self) -> list[Totals]:
        """Those of each process; none if there is no value."""
        own: Totals = self._sums.tolist()
        return self._ranks.all_gather(own) if self.names else []

    def reset(self) -> None:
        self._sums.zero_()
