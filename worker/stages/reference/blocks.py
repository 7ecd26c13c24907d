"""Parts of the reference's log-probabilities on disk, so that a killed attempt loses seconds of
work and not hours.

`<cache>/reference/<key>-blocks` holds them while they are computed. It has a lock of its own, as
every entry of the cache, so what a killed job leaves there is removed like other unused entries.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from service.contract.stage import prepared_data
from worker.storage import atomic_dir
from worker.training.distributed.ranks import Ranks
from worker.training.evaluation.evaluator import Evaluator
from worker.training.objective import Collate, Features, Forward, Run

SECONDS_OF_BLOCK: Final = 30.0
"""About how much work is repeated after a kill; a shorter reference is written without blocks."""

Part = tuple[list[int], npt.NDArray[np.float32]]
"""Indices of features, and their values."""
_FEATURES: Final = "features.npy"
_VALUES: Final = "values.npy"


@dataclass
class Blocks:
    """The first process reads and writes for all. A block has whole batches of one split."""

    root: Path
    name: str
    ranks: Ranks
    kept: Callable[[int], None]
    """Called with the number of features in all blocks, when there are more of them."""
    _known: dict[str, list[Part]] = field(init=False)
    _waiting: dict[str, list[Part]] = field(init=False, default_factory=dict)
    """Computed, but not on disk."""
    _saved_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._saved_at = time.monotonic()
        self._known = self.ranks.broadcast(self._read() if self.ranks.is_main_process else {})

    @classmethod
    def for_key(cls, root: Path, key: str, ranks: Ranks, kept: Callable[[int], None]) -> "Blocks":
        """The blocks of the entry `key`."""
        return cls(root, f"{key}-blocks", ranks, kept)

    @property
    def count(self) -> int:
        """Features whose values were on disk at the beginning."""
        return sum(len(indices) for indices, _ in chain(*self._known.values()))

    def forward(self, split: str, evaluator: Evaluator) -> Forward:
        """`evaluator.forward` for the batches that no block has, and before them the outputs in the
        blocks. Outputs are tensors with a row for each feature."""

        def forward(
            features: Features, collate: Collate, run: Run | None = None, *, generates: bool = False
        ) -> Iterator[tuple[list[int], Any]]:
            known = self._known.get(split, [])
            yield from ((indices, torch.from_numpy(values)) for indices, values in known)
            batches = evaluator.batches(features)
            done = set(chain.from_iterable(indices for indices, _ in known))
            missing = [n for n, batch in enumerate(batches) if not done.issuperset(batch)]
            outputs = evaluator.forward(
                features, collate, run, generates=generates, numbers=missing
            )
            yield from self._noting(split, outputs, [len(batches[n]) for n in missing])

        return forward

    def _noting(
        self, split: str, outputs: Iterator[tuple[list[int], Any]], sizes: Sequence[int]
    ) -> Iterator[tuple[list[int], Any]]:
        """`outputs`, which may be those of parts of a batch; a block ends where a batch does."""
        ends, computed, batch = set(accumulate(sizes)), 0, list[Part]()
        for indices, output in outputs:
            values = output.cpu()
            yield indices, values
            computed += len(indices)
            batch.append((indices, values.numpy()))
            if computed in ends:
                self._keep(split, batch)
                batch = []

    def _keep(self, split: str, batch: Sequence[Part]) -> None:
        if not self.ranks.is_main_process:
            return
        self._waiting.setdefault(split, []).extend(batch)
        if time.monotonic() - self._saved_at >= SECONDS_OF_BLOCK:
            self._save()
            self._saved_at = time.monotonic()

    def _save(self) -> None:
        try:
            with prepared_data.locked(self.root, self.name):
                for split, parts in self._waiting.items():
                    _write(self.root / self.name / split, parts)
        except OSError as error:  # a full disk: they are in the next block, if that can be written
            sys.stderr.write(f"Cannot save a part of the reference's log-probabilities: {error}\n")
            return
        for split, parts in self._waiting.items():
            self._known.setdefault(split, []).extend(parts)
        self._waiting.clear()
        self.kept(self.count)

    def _read(self) -> dict[str, list[Part]]:
        """The intact blocks on disk."""
        found: dict[str, list[Part]] = {}
        folder = self.root / self.name
        if not folder.is_dir():
            return found
        with prepared_data.locked(self.root, self.name):
            for block in sorted(folder.glob("*/*")):
                if atomic_dir.verify(block):
                    part = np.load(block / _FEATURES).tolist(), np.load(block / _VALUES)
                    found.setdefault(block.parent.name, []).append(part)
        return found

    def remove(self) -> None:
        """Their values are in the entry."""
        if not self.ranks.is_main_process or not (self.root / self.name).is_dir():
            return
        with suppress(OSError), prepared_data.locked(self.root, self.name):
            shutil.rmtree(self.root / self.name)


def _write(folder: Path, parts: Sequence[Part]) -> None:
    """A block is named after its first feature, which is in no other block."""
    features = np.concatenate([indices for indices, _ in parts])
    with atomic_dir.writing(folder / str(features[0])) as block:
        np.save(block / _FEATURES, features)
        np.save(block / _VALUES, np.concatenate([values for _, values in parts]))
