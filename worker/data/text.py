"""Lines of UTF-8 text: JSON lines, CSV and plain text, each row known by its line."""

import csv
import json
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

from worker.data.table import MAX_ROW_BYTES, Row, Source, Table, unreadable

_BOM = b"\xef\xbb\xbf"
csv.field_size_limit(MAX_ROW_BYTES)


def text(source: Source) -> Table:
    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
        with source.path.open("rb") as file:
            for number, line in _lines(file, source):
                end = "\n" if source.keep_line_ends and line.endswith("\n") else ""
                yield _place(source, number), {"text": line.rstrip("\r\n") + end}

    return Table(columns=("text",), rows=rows)


def jsonl(source: Source) -> Table:
    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
        with source.path.open("rb") as file:
            for number, line in _lines(file, source):
                if line.strip():
                    yield _place(source, number), _object(line, _place(source, number))

    return Table(columns=None, rows=rows)


def delimited(source: Source) -> Table:
    """CSV with a header line; a row is named by the line that it begins on."""
    with source.path.open("rb") as file:
        header = next(_records(file, source), (1, []))[1]
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        unreadable(_place(source, 1), f"the header names {', '.join(repeated)} more than once")

    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
        with source.path.open("rb") as file:
            records = _records(file, source)
            next(records, None)
            for number, record in records:
                if len(record) != len(header):
                    problem = f"{len(record)} fields, but the header has {len(header)}"
                    unreadable(_place(source, number), problem)
                yield _place(source, number), dict(zip(header, record, strict=True))

    return Table(columns=tuple(header), rows=rows)


def json_fault(error: Exception) -> str:
    """What is wrong with a JSON text, without its content."""
    if isinstance(error, json.JSONDecodeError):
        where = f" at character {error.pos + 1}" if error.doc else ""
        return f"not valid JSON: {error.msg}{where}"
    if isinstance(error, RecursionError):
        return "not usable JSON: nested too deeply"
    return "not usable JSON: a number has too many digits"


def _place(source: Source, number: int) -> str:
    return f"{source.name}, line {number}"


def _lines(file: BinaryIO, source: Source) -> Iterator[tuple[int, str]]:
    """(number from 1, line with its end). Never holds more than one line."""
    number = 0
    while raw := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(raw) > MAX_ROW_BYTES:
            unreadable(_place(source, number), f"longer than {MAX_ROW_BYTES // 1024**2} MiB")
        try:
            yield number, raw.removeprefix(_BOM if number == 1 else b"").decode()
        except UnicodeDecodeError as error:
            unreadable(_place(source, number), f"not valid UTF-8 at byte {error.start + 1}")


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        unreadable(place, json_fault(error))
    if not isinstance(value, dict):
        unreadable(place, f"must be a JSON object, not {type(value).__name__}")
    return value


def _records(file: BinaryIO, source: Source) -> Iterator[tuple[int, list[str]]]:
    """(line that the record begins on, fields); empty lines are left out."""
    reader = csv.reader((line for _, line in _lines(file, source)), strict=True)
    begins = 1
    try:
        for record in reader:
            if record:
                yield begins, record
            begins = reader.line_num + 1
    except csv.Error as error:
        unreadable(_place(source, begins), f"not valid CSV: {error}")
