"""Parquet files, batch by batch."""

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from worker.data.table import Row, RowError, Source, Table, unreadable, unsupported

_ROWS_AT_ONCE = 256


def rows_of(source: Source) -> Table:
    try:
        with pq.ParquetFile(source.path) as file:
            columns = tuple(file.schema_arrow.names)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        unsupported(source, "not a Parquet file, or cut off or damaged")

    def rows(wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        number = 0
        with pq.ParquetFile(source.path) as file:
            try:
                for batch in _batches(file, wanted):
                    for row in _rows(batch):
                        number += 1
                        yield f"{source.name}, row {number}", row
            except MemoryError:  # pyarrow's own is an ArrowException, too
                raise
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                unreadable(f"{source.name}, row {number + 1}", "damaged Parquet data from here on")

    return Table(columns=columns, rows=rows, name=source.name)


def _batches(file: Any, wanted: Collection[str]) -> Iterator[Any]:
    """Reads row groups one by one, so that rows before a damaged group are still read."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=list(wanted))


def _rows(batch: Any) -> Iterator[Row | RowError]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # raised before the first row is given
        yield from (_row(batch.slice(number, 1)) for number in range(batch.num_rows))


def _row(batch: Any) -> Row | RowError:
    try:
        row: Row = batch.to_pylist()[0]
    except UnicodeDecodeError:
        return RowError("not valid UTF-8", reason="invalid_utf8")
    return row
