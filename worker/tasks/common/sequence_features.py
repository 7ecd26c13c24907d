"""Writes sequences of tokens to an Arrow file of features: one in each, or several packed into it.

The features of packed sequences also have `lengths`, the tokens of each of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from worker.tasks.base import PrepareContext
from worker.tasks.common.list_columns import Array, ListColumns
from worker.tasks.common.packing import best_fit_decreasing

KINDS: Final = {"input_ids": "int32", "trained": "int8", "lengths": "int32", "prompt_ids": "int32"}
"""The types of the lists' numbers."""
_TOKENS_AT_ONCE: Final = 1 << 20


class _Lists(NamedTuple):
    """A column of some features."""

    values: Array
    """Of all of them, one after the other."""
    sizes: Array
    """(features,) how many of the values each has."""


class _Batch(NamedTuple):
    sequences: int
    columns: Mapping[str, _Lists]


def write_packed(columns: ListColumns, length: int, context: PrepareContext, target: Path) -> int:
    """Write the sequences, each cut to `length` tokens, in features of at most `length` tokens.
    Returns the number of features."""
    sizes = np.minimum(columns.lengths, length)
    bins = best_fit_decreasing(sizes, length)
    order = np.concatenate(bins) if bins else np.empty(0, dtype=np.int64)
    counts = np.array([len(members) for members in bins], dtype=np.int64)
    ends = np.cumsum(counts)
    tokens = _sums(sizes[order], counts)

    def features(span: tuple[int, int]) -> _Batch:
        first, last = span
        members = order[ends[first] - counts[first] : ends[last - 1]]
        own = {
            name: _Lists(_values(columns, name, members, length), tokens[first:last])
            for name in columns.names
        }
        lengths = _Lists(sizes[members], counts[first:last])
        return _Batch(len(members), {**own, "lengths": lengths})

    names = [*columns.names, "lengths"]
    return _write(target, names, map(features, _spans(tokens)), context, len(columns))


def write_each(
    columns: ListColumns,
    length: int,
    context: PrepareContext,
    target: Path,
    more: Mapping[str, Callable[[int], Sequence[int]]] | None = None,
) -> int:
    """Write each sequence, cut to `length` tokens, as a feature. Returns their number.

    `more`: further columns, as functions of the number of a sequence.
    """
    others, sizes = more or {}, np.minimum(columns.lengths, length)

    def features(span: tuple[int, int]) -> _Batch:
        numbers = np.arange(*span)
        own = {
            name: _Lists(_values(columns, name, numbers, length), sizes[numbers])
            for name in columns.names
        }
        made = {name: _made(values, numbers.tolist()) for name, values in others.items()}
        return _Batch(len(numbers), {**own, **made})

    names = [*columns.names, *others]
    return _write(target, names, map(features, _spans(sizes)), context, len(columns))


def _values(columns: ListColumns, name: str, rows: Array, length: int) -> Array:
    return np.concatenate(list(columns.rows(name, rows, length)))


def _made(values: Callable[[int], Sequence[int]], numbers: list[int]) -> _Lists:
    lists = [values(number) for number in numbers]
    flat = [value for each in lists for value in each]
    return _Lists(np.array(flat), np.array([len(each) for each in lists]))


def _sums(values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of the first `counts[0]` values, of the next `counts[1]`, and so on; none of them is 0."""
    if not len(values):
        return values
    sums: npt.NDArray[np.int64] = np.add.reduceat(values, np.cumsum(counts) - counts)
    return sums


def _spans(tokens: Array) -> Iterator[tuple[int, int]]:
    """Ranges of features that together have about `_TOKENS_AT_ONCE` tokens."""
    batches = np.cumsum(tokens) // _TOKENS_AT_ONCE
    bounds = (np.flatnonzero(np.diff(batches)) + 1).tolist()
    return pairwise([0, *bounds, len(tokens)] if len(tokens) else [])


def _write(
    target: Path,
    names: Sequence[str],
    batches: Iterator[_Batch],
    context: PrepareContext,
    sequences: int,
) -> int:
    import pyarrow as pa
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    schema = Features({name: List(Value(KINDS[name])) for name in names})
    written = 0
    with ArrowWriter(path=str(target), features=schema) as writer:
        for batch in batches:
            arrays = {name: _list_array(each, KINDS[name]) for name, each in batch.columns.items()}
            writer.write_table(pa.table(arrays))
            written += batch.sequences
            context.size.check(target, written)
            context.progress(written, sequences)
        count, _bytes = writer.finalize()
    return int(count)


def _list_array(lists: _Lists, kind: str) -> Any:
    import pyarrow as pa

    bounds = np.cumsum([0, *lists.sizes.tolist()], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(lists.values.astype(kind)))
