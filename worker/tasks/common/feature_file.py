"""Rows → the Arrow file of their features, many at a time."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from worker.data.report import Lengths
from worker.tasks.base import PrepareContext

_ROWS_AT_ONCE: Final = 500

Columns = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""(number of the first row, columns of many rows) → columns of their features."""


def write(
    examples: Any,
    columns: Columns,
    schema: Mapping[str, Any],
    context: PrepareContext,
    target: Path,
) -> int:
    """All rows of a `datasets.Dataset` as features in the Arrow file `target`; their number."""
    from datasets import Features
    from datasets.arrow_writer import ArrowWriter

    with ArrowWriter(path=str(target), features=Features(schema)) as writer:
        for first in range(0, len(examples), _ROWS_AT_ONCE):
            rows = examples[first : first + _ROWS_AT_ONCE]
            writer.write_batch(columns(first, rows))
            context.progress(min(first + _ROWS_AT_ONCE, len(examples)), len(examples))
        count, _bytes = writer.finalize()
    return int(count)


def measure(
    lengths: Lengths,
    cut: Sequence[Sequence[int]],
    limit: int,
    whole: Callable[[list[int]], Sequence[Sequence[int]]],
) -> int:
    """Note how long texts are before they are cut to `limit` tokens; how many were longer.

    Only those that fill the limit are tokenised again: `whole` is given their numbers.
    """
    sizes = [len(row) for row in cut]
    full = [number for number, size in enumerate(sizes) if size >= limit]
    for number, row in zip(full, whole(full) if full else (), strict=True):
        sizes[number] = len(row)
    longer = sum(sizes[number] > limit for number in full)
    lengths.add(sizes, longer)
    return longer


def inputs(tokenizer: Any) -> dict[str, Any]:
    """The columns that the tokenizer's models take."""
    from datasets import List, Value

    kinds = {"input_ids": List(Value("int32")), "token_type_ids": List(Value("int8"))}
    return {name: kind for name, kind in kinds.items() if name in tokenizer.model_input_names}
