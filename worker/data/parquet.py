"""Parquet files, batch by batch.

A file of a few kilobytes can hold gigabytes: its pages are compressed, and a value that repeats is
stored once. What it unpacks to is limited by what really arrives, since its metadata may be wrong.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from service.contract.failures import FailureCode, StageError
from worker.data.table import (
    MAX_COLUMNS,
    MAX_ROW_BYTES,
    Row,
    RowError,
    Source,
    Table,
    too_long,
    unreadable,
    unsupported,
)
from worker.processes.memory_limit import added_memory

_ROWS_AT_ONCE: Final = 256
_MIB: Final = 1024**2
_MEMORY_AT_ONCE: Final = 1024 * _MIB
"""For the rows that are unpacked together; twice what the check of an upload has for everything."""
_MARK: Final = b"PAR1"
_LARGEST_FOOTER: Final = 64 * _MIB
_UNPACKED: Final = 4096 * _MIB
_UNPACKED_TIMES: Final = 100
"""A file may unpack to `_UNPACKED` bytes, or to so many times its size if that is more."""
_MOST_VALUES: Final = 4_000_000
"""In the lists of one row: as Python objects they take a hundred bytes each."""


def rows_of(source: Source) -> Table:
    _check_footer(source)
    columns = _columns(source)

    def rows(wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        number = 0
        with pq.ParquetFile(source.path) as file:
            unpacked = _Unpacked(source)
            try:
                for batch in _batches(file, wanted):
                    unpacked.add(batch.nbytes, number)
                    for row in _rows(batch):
                        number += 1
                        yield f"{source.name}, row {number}", row
            except MemoryError as error:  # pyarrow's own is an ArrowException, too
                raise _too_large(source, number) from error
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                _raise_disk_fault(error)
                unreadable(f"{source.name}, row {number + 1}", "damaged Parquet data from here on")

    return Table(columns=columns, rows=rows, name=source.name)


def _columns(source: Source) -> tuple[str, ...]:
    try:
        with added_memory(_MEMORY_AT_ONCE), pq.ParquetFile(source.path) as file:
            names = tuple(file.schema_arrow.names)
    except MemoryError:
        unsupported(source, "its metadata needs more than 1 GiB of memory")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        _raise_disk_fault(error)
        unsupported(source, "not a Parquet file, or cut off or damaged")
    if len(names) > MAX_COLUMNS:
        unsupported(source, f"has {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
    return names


def _raise_disk_fault(error: Exception) -> None:
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _check_footer(source: Source) -> None:
    """The library reads a footer of any size before it looks at it."""
    with source.path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        length, mark = int.from_bytes(file.read(4), "little"), file.read()
    if mark == _MARK and length > _LARGEST_FOOTER:
        unsupported(source, f"its metadata has {length:,} bytes, or the file is damaged")


def _batches(file: Any, wanted: Collection[str]) -> Iterator[Any]:
    """Reads row groups one by one, so that rows before a damaged group are still read.

    If the rows of a batch do not fit in memory together, they are read one by one.
    """
    for group in range(file.num_row_groups):
        given = 0
        try:
            for batch in _bounded(file.iter_batches(_ROWS_AT_ONCE, [group], list(wanted))):
                yield batch
                given += batch.num_rows
        except MemoryError:
            singly = _bounded(file.iter_batches(1, [group], list(wanted)))
            for number, batch in enumerate(singly):
                if number >= given:
                    yield batch


def _bounded(batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        with added_memory(_MEMORY_AT_ONCE):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _rows(batch: Any) -> Iterator[Row | RowError]:
    if batch.nbytes > MAX_ROW_BYTES or _values(batch) > _MOST_VALUES:
        yield from (_row(batch.slice(number, 1)) for number in range(batch.num_rows))
        return
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # raised before the first row is given
        yield from (_row(batch.slice(number, 1)) for number in range(batch.num_rows))


def _row(batch: Any) -> Row | RowError:
    if batch.nbytes > MAX_ROW_BYTES:
        return too_long(MAX_ROW_BYTES)
    if _values(batch) > _MOST_VALUES:
        return RowError(f"has more than {_MOST_VALUES:,} values in its lists", reason="too_long")
    try:
        row: Row = batch.to_pylist()[0]
    except UnicodeDecodeError:
        return RowError("not valid UTF-8", reason="invalid_utf8")
    return row


def _values(batch: Any) -> int:
    return sum(_leaves(column) for column in batch.columns)


def _leaves(column: Any) -> int:
    """The number of values in it, in lists of any depth."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _leaves(column.flatten())
    if pa.types.is_map(kind):
        begin, end = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
        return int(end - begin) + _leaves(column.items.slice(begin, end - begin))
    if pa.types.is_struct(kind):
        return sum(_leaves(each) for each in column.flatten())
    return len(column)


class _Unpacked:
    """Counts the bytes that a file has unpacked to."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._limit = max(_UNPACKED, _UNPACKED_TIMES * source.path.stat().st_size)
        self._bytes = 0

    def add(self, count: int, rows: int) -> None:
        """StageError(data_too_large) beyond the limit; `rows`: how many were read."""
        self._bytes += count
        if self._bytes > self._limit:
            raise StageError(
                FailureCode.DATA_TOO_LARGE,
                f"{self._source.name}, row {rows + 1}: up to here the file unpacks to more than "
                f"{self._limit // _MIB:,} MiB, and it has {self._source.path.stat().st_size:,} "
                "bytes",
                action="Write the data as JSON lines, or as Parquet without repeated values, then "
                "submit again.",
                place=f"{self._source.name}, row {rows + 1}",
                limit=self._limit,
            )


def _too_large(source: Source, rows: int) -> StageError:
    place = f"{source.name}, row {rows + 1}"
    return StageError(
        FailureCode.DATA_TOO_LARGE,
        f"{place}: unpacking it takes more than {_MEMORY_AT_ONCE // _MIB:,} MiB of memory",
        action="Shorten the cells of this row, or leave the column out, then submit again.",
        place=place,
    )
