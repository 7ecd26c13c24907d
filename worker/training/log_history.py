"""What a training has logged so far, entry by entry, as `transformers.TrainerState` keeps it.

Each checkpoint holds it, so that a resumed training ends with the history of the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

LIMIT: Final = 10_000
"""Entries: a checkpoint must not grow with the number of steps."""

Entry = dict[str, float]


@dataclass
class LogHistory:
    entries: list[Entry] = field(default_factory=list)

    def add(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        self.entries.append({**values, "epoch": epoch, "step": step})
        if len(self.entries) > LIMIT:
            self.entries = _thinned(self.entries)


def _thinned(entries: list[Entry]) -> list[Entry]:
    """Without every second loss; if these are few, without every second entry."""
    losses = [number for number, entry in enumerate(entries) if "loss" in entry]
    if len(losses) <= LIMIT // 2:
        losses = list(range(len(entries)))
    dropped = set(losses[1::2])
    return [entry for number, entry in enumerate(entries) if number not in dropped]
