"""What every reader gives: rows one by one, each with the place that a user can find it at."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from service.contract.failures import FailureCode, StageError

Row = Mapping[str, Any]
MAX_ROW_BYTES: Final = 64 * 1024**2


@dataclass(frozen=True)
class Table:
    """A source of rows."""

    columns: tuple[str, ...] | None
    """Known before the first row is read, or None where every row has its own names."""
    rows: Callable[[Collection[str]], Iterator[tuple[str, Row]]]
    """Given the wanted columns, yields (place, row); a row may hold more than was wanted."""


@dataclass(frozen=True)
class Source:
    """A file as the stage reads it and as its user knows it."""

    path: Path
    name: str
    keep_line_ends: bool = False
    """The rows of plain text end with the line's end, always `\\n`."""


def unreadable(place: str, problem: str) -> NoReturn:
    raise StageError(FailureCode.UNREADABLE_ROW, f"{place}: {problem}", place=place)


def unsupported(source: Source, problem: str) -> NoReturn:
    raise StageError(FailureCode.UNSUPPORTED_FORMAT, f"{source.name}: {problem}", file=source.name)
