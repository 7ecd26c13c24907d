"""CSV files, as spreadsheets and programs write them; a row's place is its first line."""

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from worker.data.table import MAX_COLUMNS, MAX_ROW_BYTES, Row, RowError, Source, Table, unreadable
from worker.data.text import Numbered, numbered, place_of

_DELIMITERS: Final = (",", ";", "\t", "|")
_DELIMITER_LINE: Final = re.compile(r'"?sep=(\t|[^\s"])"?\s*', re.I)
"""The first line of some files that are made for Excel."""
csv.field_size_limit(MAX_ROW_BYTES)
_SHOWN: Final = 50
_LINE_COST: Final = 64
"""What a line counts in addition to its characters: a quoted text of millions of empty lines takes
a hundred times its size."""

Record = list[str] | RowError


@dataclass(frozen=True)
class _Layout:
    delimiter: str
    header_line: int = 1


def table(source: Source) -> Table:
    """The rows of a file with a header line. The delimiter follows from that line."""
    layout = _layout(source)
    number, header = _header(source, layout)
    place = place_of(source, number)
    if isinstance(header, RowError):
        unreadable(place, str(header))
    names = [name.strip() for name in header]
    # Spreadsheets write empty columns after the last one, without names.
    if len(names) > MAX_COLUMNS:
        unreadable(place, f"the header names {len(names):,} columns, more than {MAX_COLUMNS:,}")
    counts = Counter(name for name in names if name)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        shown = ", ".join(name[:_SHOWN] for name in repeated[:_SHOWN])
        unreadable(place, f"the header names {shown} more than once")

    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        with source.path.open("rb") as file:
            records = _records(file, source, layout)
            next(records, None)
            for number, record in records:
                if not _is_blank(record, names):
                    yield place_of(source, number), _named(record, names, layout.delimiter)

    return Table(columns=tuple(names), rows=rows, name=source.name, header=place)


def _layout(source: Source) -> _Layout:
    """The delimiter that cuts the header into the most fields; of equals the first."""
    with source.path.open("rb") as file:
        _, line, _ = next(numbered(file, source), (1, "", None))
    if named := _DELIMITER_LINE.fullmatch(line):
        return _Layout(named[1], header_line=2)

    def fields(layout: _Layout) -> int:
        _, header = _header(source, layout)
        return 0 if isinstance(header, RowError) else len(header)

    return max(map(_Layout, _DELIMITERS), key=fields)


def _header(source: Source, layout: _Layout) -> tuple[int, Record]:
    """The line that it begins on, and its fields; none in an empty file."""
    with source.path.open("rb") as file:
        return next(_records(file, source, layout), (layout.header_line, []))


def _is_blank(record: Record, names: list[str]) -> bool:
    """Whether it is an empty line of a spreadsheet. In a single column it is an empty text."""
    if isinstance(record, RowError) or len(names) == 1:
        return False
    return not any(field.strip() for field in record)


def _named(record: Record, names: list[str], delimiter: str) -> Row | RowError:
    if isinstance(record, RowError):
        return record
    if len(record) != len(names):
        problem = f"{len(record)} field{'' if len(record) == 1 else 's'}, "
        problem += f"but the header has {len(names)}"
        if len(record) > len(names):
            shown = "a tab" if delimiter == "\t" else f"`{delimiter}`"
            problem += f": put texts that contain {shown} in double quotation marks"
        return RowError(problem, reason="wrong_field_count")
    return dict(zip(names, record, strict=True))


def _records(file: BinaryIO, source: Source, layout: _Layout) -> Iterator[tuple[int, Record]]:
    """(line that the record begins on, fields), from the header on; empty lines are skipped.

    Of a record that is not valid CSV only the first line is lost. The next record begins with the
    first later line that can begin one: the rest of a broken record usually has an unpaired
    quotation mark.
    """
    numbers = numbered(file, source)
    for _ in range(layout.header_line - 1):
        next(numbers, None)
    lines = _Lines(numbers)
    recovering = False
    while lines.begin():
        record: Record = []
        try:
            record = next(csv.reader(lines, strict=True, delimiter=layout.delimiter), [])
        except csv.Error as error:
            record = _invalid(error)
            lines.keep_first()
        if lines.fault is not None:
            record = lines.fault
        elif recovering and lines.has_lone_quote() and not isinstance(record, RowError):
            record = RowError("not valid CSV: part of a broken record", reason="invalid_csv")
        if record:
            recovering = isinstance(record, RowError) and record.reason == "invalid_csv"
            yield lines.first, record


def _invalid(error: csv.Error) -> RowError:
    problem = f"not valid CSV: {error}"
    if "new-line character" in problem:
        problem = "not valid CSV: its lines end with CR alone; save it with LF or CRLF line ends"
    elif "end of data" in problem or "expected after" in problem:
        problem += ". Inside a quoted text, write each quotation mark twice"
    return RowError(problem, reason="invalid_csv")


class _Lines:
    """The lines of a file, record by record; all lines of a record but the first can be given back.

    The size of a record is limited, like that of a row.
    """

    def __init__(self, lines: Iterator[Numbered]) -> None:
        self._lines = lines
        self._taken: list[Numbered] = []
        self._given_back: list[Numbered] = []
        """In reverse order."""
        self._characters = 0

    def begin(self) -> bool:
        """Begin a record. False at the end of the file."""
        self._taken, self._characters = [], 0
        line = self._next()
        if line is not None:
            self._given_back.append(line)
        return line is not None

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._next() if self._characters <= MAX_ROW_BYTES else None
        if line is None:
            raise StopIteration
        self._taken.append(line)
        self._characters += len(line[1]) + _LINE_COST
        return line[1]

    def _next(self) -> Numbered | None:
        return self._given_back.pop() if self._given_back else next(self._lines, None)

    @property
    def first(self) -> int:
        return self._taken[0][0]

    @property
    def fault(self) -> RowError | None:
        """What is wrong with the first line that has a problem."""
        return next((fault for _, _, fault in self._taken if fault is not None), None)

    def has_lone_quote(self) -> bool:
        return sum(line.count('"') for _, line, _ in self._taken) % 2 == 1

    def keep_first(self) -> None:
        """Give back all lines but the first: they may be records of their own."""
        self._given_back += reversed(self._taken[1:])
        del self._taken[1:]
