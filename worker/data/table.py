"""The result of every reader: rows one by one, each with its place in the user's file.

This module and its imports do not import torch or any other large library, because the API's checks
of uploads use them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from service.contract.failures import FailureCode, StageError

Row = Mapping[str, Any]
Cleaner = Callable[[Row], dict[str, Any]]
"""A row of the file → the row in the task's own format. Raises RowError."""
MAX_ROW_BYTES: Final = 64 * 1024**2
MAX_COLUMNS: Final = 100_000


class RowError(ValueError):
    """What is wrong with one row; the reader adds the place.

    `reason` is the kind of problem, by which bad rows are counted. It contains no data of the row.
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


class JobEndingRowError(RowError):
    """Ends the job, also where bad rows are skipped: whether a row has this problem depends on the
    machine, and which rows are skipped must not."""


@dataclass(frozen=True)
class Table:
    """A source of rows."""

    columns: tuple[str, ...] | None
    """Known before the first row is read, or None if every row has its own names."""
    rows: Callable[[Collection[str]], Iterator[tuple[str, Row | RowError]]]
    """Given the wanted columns, yields (place, row); a row may have more columns.

    A RowError instead of a row means that this row cannot be read, but later ones can. If all later
    rows are unreadable, a StageError is raised.
    """
    name: str = ""
    """The prefix of every place."""
    header: str | None = None
    """The place of the line that names the columns, if there is one."""


@dataclass(frozen=True)
class Source:
    """A file, and its name for the user."""

    path: Path
    name: str
    keep_line_ends: bool = False
    """Whether rows of plain text keep the end of their line, always `\\n`."""


def too_long(limit: int) -> RowError:
    return RowError(f"longer than {limit // 1024**2} MiB", reason="too_long")


def unreadable(place: str, problem: str) -> NoReturn:
    raise StageError(FailureCode.UNREADABLE_ROW, f"{place}: {problem}", place=place)


def unsupported(source: Source, problem: str) -> NoReturn:
    raise StageError(FailureCode.UNSUPPORTED_FORMAT, f"{source.name}: {problem}", file=source.name)
