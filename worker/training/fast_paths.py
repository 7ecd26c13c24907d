"""What a training chose by measuring the machine, stored in each of its checkpoints.

Two ways to compute the same thing round differently. A resumed training must therefore use the
paths that it began with, whatever a new measurement would choose.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from worker.training.distributed.ranks import Ranks

T = TypeVar("T")


@dataclass
class FastPaths:
    """The same in all processes: the first one measures for all."""

    ranks: Ranks = field(default_factory=Ranks)
    chosen: dict[str, Any] = field(default_factory=dict)
    """Plain JSON values by the name of the choice, for example `{"attention": "varlen"}`; of a
    training that is resumed, those in its checkpoint."""

    def choose(self, name: str, measure: Callable[[], T]) -> T:
        """The choice that the training began with, or else the result of `measure`, which is
        stored: plain JSON, so lists and not tuples. All processes must call this in the same order.
        """
        if name not in self.chosen:
            self.chosen[name] = self.ranks.broadcast(measure())
        value: T = self.chosen[name]
        return value
