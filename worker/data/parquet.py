"""Parquet files, batch by batch."""

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from worker.data.table import Row, Source, Table, unreadable, unsupported

_ROWS_AT_ONCE = 256


def rows_of(source: Source) -> Table:
    try:
        with pq.ParquetFile(source.path) as file:
            columns = tuple(file.schema_arrow.names)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        unsupported(source, "not a Parquet file, or cut off or damaged")

    def rows(wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
        number = 0
        with pq.ParquetFile(source.path) as file:
            try:
                for batch in _batches(file, wanted):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{source.name}, row {number}", row
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                unreadable(f"{source.name}, row {number + 1}", "damaged Parquet data from here on")

    return Table(columns=columns, rows=rows)


def _batches(file: Any, wanted: Collection[str]) -> Iterator[Any]:
    """Group by group: rows before a damaged group are still read."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=list(wanted))
