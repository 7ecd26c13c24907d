"""Lines of UTF-8 text: JSON lines and plain text; a row's place is its line."""

import json
import resource
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO, Final

from worker.data.table import (
    MAX_ROW_BYTES,
    Row,
    RowError,
    Source,
    Table,
    too_long,
    unsupported,
)
from worker.processes.memory_limit import added_memory

_BOM: Final = b"\xef\xbb\xbf"
_OTHER_BOMS: Final = {
    # UTF-32's begins like UTF-16's.
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_PIECE: Final = 1024**2
_LARGE: Final = 4 * 1024**2
_PARSED: Final = 768 * 1024**2
_SHOWN: Final = 50
"""Characters of a key."""

Line = str | RowError
Numbered = tuple[int, str, RowError | None]


def text(source: Source) -> Table:
    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        with source.path.open("rb") as file:
            for number, line in _lines(file, source):
                if isinstance(line, RowError):
                    yield place_of(source, number), line
                    continue
                end = "\n" if source.keep_line_ends and line.endswith("\n") else ""
                yield place_of(source, number), {"text": line.rstrip("\r\n") + end}

    return Table(columns=("text",), rows=rows, name=source.name)


def jsonl(source: Source) -> Table:
    def rows(_wanted: Collection[str]) -> Iterator[tuple[str, Row | RowError]]:
        decoder = RowDecoder()
        with source.path.open("rb") as file:
            for number, line in _lines(file, source):
                if isinstance(line, RowError):
                    yield place_of(source, number), line
                elif line.strip():
                    yield place_of(source, number), _object(line, decoder)

    return Table(columns=None, rows=rows, name=source.name)


class RowDecoder(json.JSONDecoder):
    """Notes a key that an object has twice, of which json would use the last value in silence."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._distinct)
        self._repeated: str | None = None

    def _distinct(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            self._repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        return found

    def take_fault(self) -> RowError | None:
        """What is wrong with what was decoded since the last call."""
        name, self._repeated = self._repeated, None
        if name is None:
            return None
        problem = f"names the key {name[:_SHOWN]!r} more than once: keep one of its values"
        return RowError(problem, reason="repeated_key")


def parsing_memory(characters: int) -> AbstractContextManager[None]:
    """A limit on what a large JSON text becomes: `[[],[],…]` takes thirty times its size."""
    return added_memory(_PARSED) if characters > _LARGE else nullcontext()


def too_many_values() -> RowError:
    # Who reads the file may have set a lower limit for all that it does.
    given, _ = resource.getrlimit(resource.RLIMIT_AS)
    most = _PARSED if given == resource.RLIM_INFINITY else min(_PARSED, given)
    return RowError(f"needs more than {most // 1024**2} MiB of memory", reason="too_long")


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


def place_of(source: Source, number: int) -> str:
    return f"{source.name}, line {number}"


def _lines(file: BinaryIO, source: Source) -> Iterator[tuple[int, Line]]:
    """(number from 1, line with its end). Never holds more than one line."""
    return ((number, fault or line) for number, line, fault in numbered(file, source))


def numbered(file: BinaryIO, source: Source) -> Iterator[Numbered]:
    """(number, line, what is wrong with it); a line that is too long is empty."""
    number = 0
    while raw := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if number == 1:
            _refuse_other_encodings(raw, source)
            raw = raw.removeprefix(_BOM)
        if len(raw) > MAX_ROW_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(_PIECE)
            yield number, "", too_long(MAX_ROW_BYTES)
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


def _decoded(raw: bytes) -> tuple[str, RowError | None]:
    if b"\x00" in raw:
        at = raw.index(b"\x00") + 1
        problem = f"holds a NUL byte at byte {at}: binary data, or text that is not UTF-8"
        return raw.decode(errors="replace"), RowError(problem, reason="nul_byte")
    try:
        return raw.decode(), None
    except UnicodeDecodeError as error:
        problem = (
            f"not valid UTF-8 at byte {error.start + 1}: save the file as UTF-8 (in Excel: "
            "`CSV UTF-8`), or convert it with `iconv -f WINDOWS-1252 -t UTF-8 <file> > <new file>`"
        )
        return raw.decode(errors="replace"), RowError(problem, reason="invalid_utf8")


def _object(line: str, decoder: RowDecoder) -> Row | RowError:
    decoder.take_fault()  # of a line before that was not valid further on
    try:
        with parsing_memory(len(line)):
            value = decoder.decode(line)
    except MemoryError:
        return too_many_values()
    except (ValueError, RecursionError) as error:
        return RowError(json_fault(error), reason="invalid_json")
    return decoder.take_fault() or (value if isinstance(value, dict) else no_object(value))
