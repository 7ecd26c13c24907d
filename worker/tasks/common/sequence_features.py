"""Writes sequences of tokens to an Arrow file of features: one in each, or several packed into it.

The features of packed sequences also have `lengths`, the tokens of each of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from worker.tasks.base import PrepareContext
from worker.tasks.common.list_columns import Array, ListColumns
from worker.tasks.common.packing import Numbers, best_fit_decreasing

KINDS: Final = {"input_ids": "int32", "trained": "int8", "lengths": "int32", "prompt_ids": "int32"}
"""The types of the lists' numbers."""
_TOKENS_AT_ONCE: Final = 1 << 20

Lists = Mapping[str, Sequence[Array]]
"""Name of a column → the list of each feature."""


def write_packed(columns: ListColumns, length: int, context: PrepareContext, target: Path) -> int:
    """Write the sequences, each cut to `length` tokens, in features of at most `length` tokens.
    Returns the number of features."""
    sizes = np.minimum(columns.lengths, length)
    bins = best_fit_decreasing(sizes, length)
    kinds = [*columns.names, "lengths"]

    def features(some: Sequence[Numbers]) -> Lists:
        found = {
            name: [_joined(columns, name, members, length) for members in some]
            for name in columns.names
        }
        return {**found, "lengths": [sizes[members] for members in some]}

    tokens = np.array([sizes[members].sum() for members in bins], dtype=np.int64)
    batches = (bins[first:last] for first, last in _ranges(tokens))
    return _write(target, kinds, map(features, batches), context, len(columns))


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
    others = more or {}

    def features(span: tuple[int, int]) -> Lists:
        numbers = range(*span)
        found: dict[str, Any] = {
            name: [row[:length] for row in columns.rows(name, numbers)] for name in columns.names
        }
        return found | {
            name: [np.asarray(values(number)) for number in numbers]
            for name, values in others.items()
        }

    spans = _ranges(np.minimum(columns.lengths, length))
    return _write(target, [*columns.names, *others], map(features, spans), context, len(columns))


def _joined(columns: ListColumns, name: str, members: Numbers, length: int) -> Array:
    return np.concatenate([row[:length] for row in columns.rows(name, members)])


def _ranges(tokens: Array) -> Iterator[tuple[int, int]]:
    """Ranges of features that together have about `_TOKENS_AT_ONCE` tokens."""
    batches = np.cumsum(tokens) // _TOKENS_AT_ONCE
    bounds = (np.flatnonzero(np.diff(batches)) + 1).tolist()
    return pairwise([0, *bounds, len(tokens)])


def _write(
    target: Path,
    names: Sequence[str],
    batches: Iterator[Lists],
    context: PrepareContext,
    sequences: int,
) -> int:
    import pyarrow as pa
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    schema = Features({name: List(Value(KINDS[name])) for name in names})
    written = 0
    with ArrowWriter(path=str(target), features=schema) as writer:
        for lists in batches:
            arrays = {name: _list_array(rows, KINDS[name]) for name, rows in lists.items()}
            writer.write_table(pa.table(arrays))
            written += _sequences(lists)
            context.size.check(target, written)
            context.progress(written, sequences)
        count, _bytes = writer.finalize()
    return int(count)


def _sequences(lists: Lists) -> int:
    if "lengths" in lists:
        return sum(map(len, lists["lengths"]))
    return len(lists["input_ids"])


def _list_array(rows: Sequence[Array], kind: str) -> Any:
    import pyarrow as pa

    bounds = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    values = np.concatenate(rows) if rows else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(values.astype(kind, copy=False)))
