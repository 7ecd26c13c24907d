"""What a training chose by measuring the machine, kept in each of its checkpoints.

Two ways of computing the same thing round differently. A resumed training must therefore take the
ways that it began with, whatever a new measurement would say.
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
    """The same in all processes: what the first one measures holds for all of them."""

    ranks: Ranks = field(default_factory=Ranks)
    chosen: dict[str, Any] = field(default_factory=dict)
    """Plain JSON values by the names of what was chosen, for example `{"attention": "varlen"}`."""
    resumed: bool = False

    @classmethod
    def of(cls, recorded: Mapping[str, Any] | None, ranks: Ranks) -> "FastPaths":
        """`recorded`: that of the checkpoint that is resumed (`checkpoint.fast_paths_of`); None of
        a training that begins."""
        return cls(ranks, dict(recorded or {}), recorded is not None)

    def choose(self, name: str, measure: Callable[[], T], *, before: T) -> T:
        """What the training took when it began, or else what `measure` says, which is remembered.

        `before` is for a training that was begun without this choice: what the releases did that
        did not have it. A plain JSON value, so lists and no tuples. All processes must ask, in the
        same order.
        """
        if name not in self.chosen:
            self.chosen[name] = before if self.resumed else self.ranks.from_first(measure())
        value: T = self.chosen[name]
        return value
