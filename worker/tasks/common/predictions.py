"""Writes predictions and chooses a few samples to show."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from service.contract.spec.splits import prefix
from worker.training.objective import Batch, Features, Objective

SAMPLES: Final = 3
_SHOWN: Final = 300  # characters of a text in a sample


class PredictsOnly(Objective):
    """An objective without a loss, which cannot be trained."""

    train_features: Features = ()

    def item_count(self, batch: Batch) -> int:
        raise NotImplementedError

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        raise NotImplementedError


def write(rows: Sequence[Mapping[str, Any]], split: str, folder: Path) -> dict[str, Path]:
    """Write `predictions.json`, a list in the order of the split's rows; returns name → path."""
    name = f"{prefix(split)}predictions.json"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        json.dump(rows, file, indent=2, ensure_ascii=False)
    return {name: path}


def write_lines(texts: Sequence[str], split: str, folder: Path) -> dict[str, Path]:
    """Write `generated_predictions.txt`, one text per line in the order of the split's rows;
    returns name → path."""
    name = f"{prefix(split)}generated_predictions.txt"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(text.splitlines()) for text in texts]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: path}


def samples(
    rows: Sequence[Mapping[str, Any]], examples: Any, *columns: str
) -> list[dict[str, Any]]:
    """Predictions evenly spread over the split, with the beginnings of their input texts."""
    return [
        {
            **{name: examples[index][name][:_SHOWN] for name in columns if examples[index][name]},
            **rows[index],
        }
        for index in spread(len(rows), SAMPLES)
    ]


def spread(length: int, count: int) -> list[int]:
    """At most `count` evenly spaced indices below `length`."""
    count = min(count, length)
    return [length * number // count for number in range(count)]
