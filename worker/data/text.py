"""Lines of UTF-8 text: JSON lines, CSV and plain text; a row's place is its line."""

import csv
import json
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, Final

from worker.data.table import MAX_ROW_BYTES, Row, RowError, Source, Table, unreadable, unsupported

_BOM: Final = b"\xef\xbb\xbf"
_OTHER_BOMS: Final = {
    # UTF-32's begins like UTF-16's.
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_PIECE: Final = 1024**2
csv.field_size_limit(MAX_ROW_BYTES)

Line = str | RowError
_Numbered = tuple[int, str, RowError | None]


def text(source: Source) -> Table:
    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        with source.path.open("rb") as file:
            for number, line in _lines(file, source):
                if isinstance(line, RowError):
                    yield _place(source, number), line
                    continue
                end = "\n" if source.keep_line_ends and line.endswith("\n") else ""
                yield _place(source, number), {"text": line.rstrip("\r\n") + end}

    return Table(columns=("text",), rows=rows, name=source.name)


def jsonl(source: Source) -> Table:
    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        with source.path.open("rb") as file:
            for number, line in _lines(file, source):
                if isinstance(line, RowError):
                    yield _place(source, number), line
                elif line.strip():
                    yield _place(source, number), _object(line)

    return Table(columns=None, rows=rows, name=source.name)


def delimited(source: Source) -> Table:
    """CSV with a header line; a row's place is the line that it begins on."""
    with source.path.open("rb") as file:
        header = next(_records(file, source), (1, []))[1]
    if isinstance(header, RowError):
        unreadable(_place(source, 1), str(header))
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        unreadable(_place(source, 1), f"the header names {', '.join(repeated)} more than once")

    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        with source.path.open("rb") as file:
            records = _records(file, source)
            next(records, None)
            for number, record in records:
                yield _place(source, number), _named(record, header)

    return Table(columns=tuple(header), rows=rows, name=source.name)


def json_fault(error: Exception) -> str:
    """What is wrong with a JSON text, without its content."""
    if isinstance(error, json.JSONDecodeError):
        where = f" at character {error.pos + 1}" if error.doc else ""
        return f"not valid JSON: {error.msg}{where}"
    if isinstance(error, RecursionError):
        return "not usable JSON: nested too deeply"
    return "not usable JSON: a number has too many digits"


def no_object(value: Any) -> RowError:
    problem = f"must be a JSON object, not {type(value).__name__}"
    return RowError(problem, reason="not_an_object")


def _place(source: Source, number: int) -> str:
    return f"{source.name}, line {number}"


def _lines(file: BinaryIO, source: Source) -> Iterator[tuple[int, Line]]:
    """(number from 1, line with its end). Never holds more than one line."""
    return ((number, fault or line) for number, line, fault in _numbered(file, source))


def _numbered(file: BinaryIO, source: Source) -> Iterator[_Numbered]:
    """(number, line, what is wrong with it); a line that is too long is empty."""
    number = 0
    while raw := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if number == 1:
            _refuse_other_encodings(raw, source)
            raw = raw.removeprefix(_BOM)
        if len(raw) > MAX_ROW_BYTES:
            _skip_line(file, raw)
            problem = f"longer than {MAX_ROW_BYTES // 1024**2} MiB"
            yield number, "", RowError(problem, reason="too_long")
        else:
            yield number, *_decoded(raw)


def _refuse_other_encodings(begin: bytes, source: Source) -> None:
    for mark, encoding in _OTHER_BOMS.items():
        if begin.startswith(mark):
            unsupported(
                source,
                f"is {encoding}, and must be UTF-8: convert it with "
                f"`iconv -f {encoding} -t UTF-8 <file> > <new file>`",
            )


def _skip_line(file: BinaryIO, raw: bytes) -> None:
    """Skip the rest of a line."""
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(_PIECE)


def _decoded(raw: bytes) -> tuple[str, RowError | None]:
    if b"\x00" in raw:
        at = raw.index(b"\x00") + 1
        problem = f"holds a NUL byte at byte {at}: binary data, or text that is not UTF-8"
        return raw.decode(errors="replace"), RowError(problem, reason="nul_byte")
    try:
        return raw.decode(), None
    except UnicodeDecodeError as error:
        problem = f"not valid UTF-8 at byte {error.start + 1}"
        return raw.decode(errors="replace"), RowError(problem, reason="invalid_utf8")


def _object(line: str) -> Row | RowError:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return RowError(json_fault(error), reason="invalid_json")
    return value if isinstance(value, dict) else no_object(value)


# ---- CSV ----------------------------------------------------------------------------------------


def _named(record: list[str] | RowError, header: list[str]) -> Row | RowError:
    if isinstance(record, RowError):
        return record
    if len(record) != len(header):
        problem = f"{len(record)} fields, but the header has {len(header)}"
        return RowError(problem, reason="wrong_field_count")
    return dict(zip(header, record, strict=True))


def _records(file: BinaryIO, source: Source) -> Iterator[tuple[int, list[str] | RowError]]:
    """(line that the record begins on, fields); empty lines are skipped.

    Of a record that is not valid CSV only the first line is lost. The next record begins with the
    first later line that can begin one: the rest of a broken record usually has an unpaired
    quotation mark.
    """
    lines = _Lines(_numbered(file, source))
    recovering = False
    while lines.begin():
        record: list[str] | RowError = []
        try:
            record = next(csv.reader(lines, strict=True), [])
        except csv.Error as error:
            record = RowError(f"not valid CSV: {error}", reason="invalid_csv")
            lines.keep_first()
        if lines.fault is not None:
            record = lines.fault
        elif recovering and lines.has_lone_quote() and not isinstance(record, RowError):
            record = RowError("not valid CSV: part of a broken record", reason="invalid_csv")
        if record:
            recovering = isinstance(record, RowError) and record.reason == "invalid_csv"
            yield lines.first, record


class _Lines:
    """The lines of a file, record by record; all lines of a record but the first can be given back.

    The size of a record is limited, like that of a row.
    """

    def __init__(self, lines: Iterator[_Numbered]) -> None:
        self._lines = lines
        self._taken: list[_Numbered] = []
        self._given_back: list[_Numbered] = []
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
        self._characters += len(line[1])
        return line[1]

    def _next(self) -> _Numbered | None:
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
