"""Writes the features of rows to an Arrow file, in batches."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from worker.data.report import Lengths
from worker.tasks.base import PrepareContext
from worker.tasks.common import row_batches

_BATCH_ROWS: Final = 500

Columns = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""(index of the first row, columns of a batch of rows) → columns of their features."""


def write(
    examples: Any,
    columns: Columns,
    schema: Mapping[str, Any],
    context: PrepareContext,
    target: Path,
    growth: float = 1.0,
) -> int:
    """Write the features of a `datasets.Dataset` to the Arrow file `target`; return the count.

    `growth`: how many times as many tokens the features of a row have as its texts.
    """
    from datasets import Features
    from datasets.arrow_writer import ArrowWriter

    with ArrowWriter(path=str(target), features=Features(schema)) as writer:
        for first, last in row_batches.ranges(examples, _BATCH_ROWS, growth):
            writer.write_batch(columns(first, examples[first:last]))
            context.size.check(target, last)
            context.progress(last, len(examples))
        count, _bytes = writer.finalize()
    return int(count)


def measure(
    lengths: Lengths,
    cut: Sequence[Sequence[int]],
    limit: int,
    whole: Callable[[list[int]], Sequence[Sequence[int]]],
) -> int:
    """Record the lengths of texts before they are cut to `limit`; return how many are longer.

    Only rows that fill the limit are tokenized again: `whole` gets their indices.
    """
    sizes = [len(row) for row in cut]
    full = [number for number, size in enumerate(sizes) if size >= limit]
    for number, row in zip(full, whole(full) if full else (), strict=True):
        sizes[number] = len(row)
    longer = sum(sizes[number] > limit for number in full)
    lengths.add(sizes, longer)
    return longer


def inputs(tokenizer: Any) -> dict[str, Any]:
    """The input columns of the tokenizer's models."""
    from datasets import List, Value

    kinds = {"input_ids": List(Value("int32")), "token_type_ids": List(Value("int8"))}
    return {name: kind for name, kind in kinds.items() if name in tokenizer.model_input_names}
