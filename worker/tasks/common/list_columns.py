"""Columns of lists in a `datasets.Dataset`, read in any order without decoding whole rows."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """Some consecutive rows of a column; views of the memory-mapped file."""

    values: Array
    """Of all these rows, and perhaps of others, one after the other."""
    bounds: Array
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
        sizes = [np.diff(part.bounds) for part in self.parts(self.names[0])]
        self._ends = np.cumsum([len(each) for each in sizes])
        self.lengths: npt.NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *sizes])

    def __len__(self) -> int:
        return len(self.lengths)

    def parts(self, name: str) -> list[Part]:
        """The whole column, in order."""
        return self._parts[name]

    def rows(self, name: str, indices: npt.ArrayLike) -> Iterator[Array]:
        """The rows with these indices."""
        wanted = np.asarray(indices, dtype=np.int64)
        numbers = np.searchsorted(self._ends, wanted, side="right")
        firsts = np.concatenate([[0], self._ends])[numbers]
        for number, place in zip(numbers.tolist(), (wanted - firsts).tolist(), strict=True):
            values, bounds = self._parts[name][number]
            yield values[bounds[place] : bounds[place + 1]]


def _part(chunk: Any) -> Part:
    return Part(
        chunk.values.to_numpy(zero_copy_only=True),
        chunk.offsets.to_numpy(zero_copy_only=True).astype(np.int64),
    )
