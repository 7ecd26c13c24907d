"""What a training chose by measuring the machine, stored in each of its checkpoints.

Two ways to compute the same thing round differently. A resumed training must therefore use the
paths that it began with, whatever a new measurement would choose.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from worker.training.distributed.ranks import Ranks

KEY: Final = "fast_paths"
"""In a checkpoint's `progress.json`."""

T = TypeVar("T")


@dataclass
class FastPaths:
    """The same in all processes: the first one measures for all."""

    ranks: Ranks = field(default_factory=Ranks)
    chosen: dict[str, Any] = field(default_factory=dict)
    """Plain JSON values by the name of the choice, for example `{"attention": "varlen"}`."""

    @classmethod
    def of(cls, recorded: Mapping[str, Any] | None, ranks: Ranks) -> "FastPaths":
        """`recorded`: the record in the checkpoint that is resumed; None for a new training."""
        return cls(ranks, dict(recorded or {}))

    def choose(self, name: str, measure: Callable[[], T]) -> T:
        """The choice that the training began with, or else the result of `measure`, which is
        stored: plain JSON, so lists and not tuples. All processes must call this in the same order.
        """
        if name not in self.chosen:
            self.chosen[name] = self.ranks.broadcast(measure())
        value: T = self.chosen[name]
        return value
