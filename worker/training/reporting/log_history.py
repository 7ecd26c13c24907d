"""What a training has logged so far, in the format of `transformers.TrainerState`.

Each checkpoint holds it, so that a resumed training ends with the history of the whole.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

LIMIT: Final = 10_000
"""Entries: a checkpoint must not grow with the number of steps."""
WALL_TIME: Final = "wall_time"
"""The time of an entry in seconds since 1970. TrainerState has no such field."""

Entry = dict[str, float]


@dataclass
class LogHistory:
    entries: list[Entry] = field(default_factory=list)
    clock: Callable[[], float] = time.time

    def add(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        entry = {**values, "epoch": epoch, "step": step, WALL_TIME: self.clock()}
        self.entries.append(entry)
        if len(self.entries) > LIMIT:
            self.entries = _thinned(self.entries)

    def for_trainer_state(self) -> list[Entry]:
        """The entries with the fields of Trainer only."""
        return [{k: v for k, v in each.items() if k != WALL_TIME} for each in self.entries]


def _thinned(entries: list[Entry]) -> list[Entry]:
    """Without every second loss, or, if losses are few, without every second entry."""
    losses = [number for number, entry in enumerate(entries) if "loss" in entry]
    if len(losses) <= LIMIT // 2:
        losses = list(range(len(entries)))
    dropped = set(losses[1::2])
    return [entry for number, entry in enumerate(entries) if number not in dropped]
