"""What every reader gives: rows one by one, each with the place that a user can find it at.

Importing this module, and those that it imports, costs neither torch nor any other large library:
the API's checks of an upload run on them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from service.contract.failures import FailureCode, StageError

Row = Mapping[str, Any]
Cleaner = Callable[[Row], dict[str, Any]]
"""A row as its file has it → the row in the task's own form. Raises RowError."""
MAX_ROW_BYTES: Final = 64 * 1024**2


class RowError(ValueError):
    """What is wrong with one row; who reads the rows adds the place.

    `reason` is the kind of fault that rows are counted by. It names no value of the row.
    """

    def __init__(
        self,
        problem: str,
        code: FailureCode = FailureCode.UNREADABLE_ROW,
        *,
        reason: str = "invalid_value",
    ) -> None:
        super().__init__(problem)
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class Table:
    """A source of rows."""

    columns: tuple[str, ...] | None
    """Known before the first row is read, or None where every row has its own names."""
    rows: Callable[[Collection[str]], Iterator[tuple[str, Row | RowError]]]
    """Given the wanted columns, yields (place, row); a row may hold more than was wanted.

    A RowError in place of a row: that one cannot be read, those behind it can. What makes the rest
    unreadable is raised as a StageError.
    """
    name: str = ""
    """What every place begins with."""


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
