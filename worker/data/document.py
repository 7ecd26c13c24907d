"""One JSON document: an array of rows, `{"data": [...]}`, or SQuAD's nested articles.

Elements are decoded one at a time from a sliding window over the text, so that a file of several
gigabytes is never in memory as a whole.
"""

import codecs
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO

from worker.data.table import MAX_ROW_BYTES, Row, RowError, Source, Table, unreadable, unsupported
from worker.data.text import (
    RowDecoder,
    json_fault,
    no_object,
    parsing_memory,
    too_many_values,
)

_PIECE = 1024**2
_SPACE = " \t\n\r"
# An error this close to the end of the window may only mean that more text must be read.
_NEAR_END = 64
_UNDECODED = re.compile("[\udc80-\udcff]")


class _Truncated(Exception):
    """The text ends before the value does."""


def rows_of(source: Source) -> Table:
    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        for number, (value, is_suspect) in enumerate(_elements(source), start=1):
            row = value if isinstance(value, dict | RowError) else no_object(value)
            yield f"{source.name}, row {number}", _decoded(row, is_suspect=is_suspect)

    return Table(columns=None, rows=rows, name=source.name)


def squad(source: Source) -> Table:
    """SQuAD's own format, v1.1 and v2.0, as flat rows; an impossible question has no answers."""

    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        number = 0
        for position, (article, is_suspect) in enumerate(_elements(source), start=1):
            for paragraph, question in _questions(article):
                if isinstance(question, RowError):
                    yield f"{source.name}, article {position}", question
                    continue
                number += 1
                place = f"{source.name}, question {number} (article {position})"
                yield place, _decoded(_flat(paragraph, question), is_suspect=is_suspect)

    columns = ("id", "title", "context", "question", "answers")
    return Table(columns=columns, rows=rows, name=source.name)


def looks_like_squad(source: Source) -> bool:
    """Whether the first element of `data` is an article with paragraphs."""
    with source.path.open("rb") as file:
        text = _Text(file)
        if not text.enter_data():
            return False
        try:
            first = next(text.elements(), None)
        except (_Truncated, ValueError, RecursionError, MemoryError):
            return False
    return isinstance(first, dict) and "paragraphs" in first


def _questions(article: Any) -> Iterator[tuple[Any, Any]]:
    """(paragraph, question); a RowError for a whole article or paragraph without a list of them."""
    if isinstance(article, RowError):
        yield None, article
        return
    for paragraph in _list(article, "paragraphs"):
        if isinstance(paragraph, RowError):
            yield None, paragraph
        else:
            yield from ((paragraph, question) for question in _list(paragraph, "qas"))


def _list(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(found, list):
        return [RowError(f"must hold a list `{key}`", reason="not_squad")]
    return found


def _flat(paragraph: Mapping[str, Any], question: Any) -> Row | RowError:
    if not isinstance(question, Mapping):
        return no_object(question)
    row = {key: question[key] for key in ("id", "question") if key in question}
    if "context" in paragraph:
        row["context"] = paragraph["context"]
    if question.get("is_impossible"):
        row["answers"] = []
    elif "answers" in question:
        row["answers"] = question["answers"]
    return row


def _decoded(row: Row | RowError, *, is_suspect: bool) -> Row | RowError:
    """RowError for a row with bytes that are not UTF-8."""
    if not is_suspect or isinstance(row, RowError):
        return row
    parts: list[Any] = [row]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += [*part.keys(), *part.values()]
        elif isinstance(part, list):
            parts += part
        elif isinstance(part, str) and _UNDECODED.search(part):
            return RowError("not valid UTF-8", reason="invalid_utf8")
    return row


def _elements(source: Source) -> Iterator[tuple[Any, bool]]:
    """(element or what is wrong with it, whether it may have bytes that are not UTF-8)"""
    with source.path.open("rb") as file:
        text = _Text(file)
        if not text.enter_data():
            unsupported(source, 'must be a JSON array of objects, or an object with a list "data"')
        number = 0
        try:
            for value in text.elements():
                number += 1
                yield text.take_fault() or value, text.has_undecoded
            text.finish()
        except _Truncated:
            unreadable(f"{source.name}, row {number + 1}", "the file ends in the middle of it")
        except MemoryError:
            unreadable(f"{source.name}, row {number + 1}", str(too_many_values()))
        except (ValueError, RecursionError) as error:
            unreadable(f"{source.name}, row {number + 1}", json_fault(error))


class _Text:
    """A cursor over a JSON text that is read in pieces."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.has_undecoded = False
        """Whether bytes were read that are not UTF-8; each is a lone surrogate in its string."""
        self._json = RowDecoder()
        self.take_fault = self._json.take_fault
        self._buffer = ""
        self._at = 0
        self._ended = False
        self._in_object = False

    def enter_data(self) -> bool:
        """Move past the `[` of the rows; False if the document has no such array."""
        try:
            first = self._take()
            if first == "\ufeff":
                first = self._take()
            if first == "{":
                self._in_object = True
                first = self._enter_key("data")
                self.take_fault()  # of what comes before the rows, which is not used
        except (_Truncated, ValueError, RecursionError, MemoryError):
            return False
        return first == "["

    def elements(self) -> Iterator[Any]:
        """The values up to the closing `]`."""
        if self._peek() == "]":
            self._take()
            return
        while True:
            yield self._value()
            mark = self._take()
            if mark == "]":
                return
            if mark != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", mark, 0)

    def finish(self) -> None:
        """Check what follows the rows: nothing after an array; a comma or the end in an object."""
        try:
            mark = self._take()
        except _Truncated:
            if self._in_object:
                raise
            return
        if not self._in_object or mark not in ",}":
            raise json.JSONDecodeError("Extra data", "", 0)

    def _enter_key(self, wanted: str) -> str:
        """The first character of the value of `wanted` in the object that was just opened."""
        mark = ","
        while mark == ",":
            key = self._value()
            self._take()  # the colon
            if key == wanted:
                return self._take()
            self._value()
            mark = self._take()
        return ""

    def _peek(self) -> str:
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            self._more(_PIECE)

    def _take(self) -> str:
        mark = self._peek()
        self._at += 1
        return mark

    def _value(self) -> Any:
        self._peek()
        piece = _PIECE
        while True:
            try:
                with parsing_memory(len(self._buffer)):
                    value, end = self._json.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if self._ended:
                    raise self._verdict(error) from error
                if not self._may_continue(error):
                    raise json.JSONDecodeError(error.msg, "", 0) from error
            else:
                # A number at the very end may continue in the next piece.
                if end < len(self._buffer) or self._ended:
                    self._at = end
                    return value
            self._more(piece)
            piece *= 2  # so that a long value is not decoded too often

    def _may_continue(self, error: json.JSONDecodeError) -> bool:
        unfinished = error.msg.startswith("Unterminated string")
        return unfinished or error.pos >= len(self._buffer) - _NEAR_END

    def _verdict(self, error: json.JSONDecodeError) -> Exception:
        at_end = error.pos >= len(self._buffer.rstrip(_SPACE))
        if at_end or error.msg.startswith("Unterminated string"):
            return _Truncated()
        return json.JSONDecodeError(error.msg, "", 0)

    def _more(self, size: int) -> None:
        """Read another piece and drop what was consumed. _Truncated at the end of the file."""
        if self._ended:
            raise _Truncated
        self._buffer = self._buffer[self._at :]
        self._at = 0
        if len(self._buffer) > MAX_ROW_BYTES:
            raise json.JSONDecodeError(f"longer than {MAX_ROW_BYTES // 1024**2} MiB", "", 0)
        raw = self._file.read(size)
        self._ended = not raw
        piece = self._decoder.decode(raw, final=not raw)
        if not piece.isascii() and _UNDECODED.search(piece):
            self.has_undecoded = True
        self._buffer += piece
