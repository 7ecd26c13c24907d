"""Ranges of rows that are small enough to be tokenized at once."""

from collections.abc import Iterator
from typing import Any, Final

_BYTES_AT_ONCE: Final = 4 * 1024**2


def ranges(examples: Any, most_rows: int, growth: float = 1.0) -> Iterator[tuple[int, int]]:
    """(first row, row after the last) of all rows of a `datasets.Dataset`, in order.

    A range has at most `most_rows` rows, and less if they are large: the tokens of a text take a
    hundred times its memory, and `growth` times that if texts are cut into overlapping windows.
    """
    most_bytes = int(_BYTES_AT_ONCE / growth)
    tables = examples.with_format("arrow")
    for first in range(0, len(examples), most_rows):
        last = min(first + most_rows, len(examples))
        yield from _split(tables[first:last], first, most_bytes)


def _split(table: Any, first: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    rows = table.num_rows
    if rows <= 1 or table.nbytes <= most_bytes:
        yield first, first + rows
        return
    half = rows // 2
    yield from _split(table.slice(0, half), first, most_bytes)
    yield from _split(table.slice(half), first + half, most_bytes)
