"""Columns of lists in a `datasets.Dataset`, read in any order without decoding whole rows."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Some consecutive rows of a column; views of the memory-mapped file."""

    values: Array
    """Of all these rows, and perhaps of others, one after the other."""
    bounds: Numbers
    """(rows + 1,): row n is `values[bounds[n] : bounds[n + 1]]`."""


class ListColumns:
    def __init__(self, examples: Any, names: Sequence[str]) -> None:
        """`examples`: a `datasets.Dataset`, whose columns `names` are lists of numbers, of the same
        length in each row."""
        table = examples.with_format("arrow").select_columns(list(names))[:]
        self.names = tuple(names)
        self._parts = {
            name: [_part(chunk) for chunk in table[name].chunks if len(chunk)] for name in names
        }
        parts = self.parts(self.names[0])
        self.lengths: Numbers = _joined([np.diff(part.bounds) for part in parts])
        counts = [len(part.bounds) - 1 for part in parts]
        self._part_of = np.repeat(np.arange(len(parts)), counts)
        self._starts = {
            name: _joined([part.bounds[:-1] for part in own]) for name, own in self._parts.items()
        }

    def __len__(self) -> int:
        return len(self.lengths)

    def parts(self, name: str) -> list[Part]:
        """The whole column, in order."""
        return self._parts[name]

    def rows(self, name: str, indices: npt.ArrayLike, most: int | None = None) -> Iterator[Array]:
        """The rows with these indices, each cut to `most` values."""
        wanted = np.asarray(indices, dtype=np.int64)
        starts, lengths = self._starts[name][wanted], self.lengths[wanted]
        ends = starts + (lengths if most is None else np.minimum(lengths, most))
        values = [part.values for part in self._parts[name]]
        numbers = self._part_of[wanted].tolist()
        for number, start, end in zip(numbers, starts.tolist(), ends.tolist(), strict=True):
            yield values[number][start:end]


def _joined(parts: list[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _part(chunk: Any) -> Part:
    return Part(
        chunk.values.to_numpy(zero_copy_only=True),
        chunk.offsets.to_numpy(zero_copy_only=True).astype(np.int64),
    )
