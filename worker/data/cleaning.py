"""Cleaning rows of any source, and counting the rows that cannot be used.

Which rows are skipped is a pure function of the data and the options. Pure Python: see `table`.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from service.contract.failures import FailureCode, StageError
from service.system.masking import mask
from worker.data.table import Cleaner, JobEndingRowError, Row, RowError, Table

SHOWN: Final = 100
"""Bad rows that are reported with their places."""
_CHARACTERS: Final = 300
"""Longest problem that is kept; a place may have half as many characters."""
_NAME: Final = 200
_COMPARED: Final = 1000
"""Columns that are compared with the name of a missing one."""
_ROWS_TO_DECIDE: Final = 1000
"""If none of the first rows has a needed column, after this many the column counts as missing."""


@dataclass(frozen=True)
class Columns:
    """The task's columns and the user's names for them."""

    names: Mapping[str, str]
    """The task's column → the user's."""
    needed: frozenset[str]
    """The task's columns that every row must have."""
    listed: frozenset[str] = frozenset()
    """Those that the user lists in `task.label_columns`: `dataset.columns` does not map them."""

    @classmethod
    def from_mapping(
        cls,
        known: Iterable[str],
        required: Collection[str],
        optional: Collection[str],
        mapping: Mapping[str, str],
    ) -> "Columns":
        """A column that the user maps is needed like a required one, unless it is `optional`."""
        names = {column: mapping.get(column, column) for column in known}
        unknown = sorted(mapping.keys() - names.keys())
        if unknown:
            raise StageError(
                FailureCode.INVALID_OPTION,
                f"`dataset.columns` maps {', '.join(map(repr, unknown))}, but the task's columns "
                f"are {', '.join(names)}",
            )
        return cls(names, frozenset(required) | frozenset(mapping).difference(optional))

    def missing(self, found: Collection[str]) -> list[str]:
        return [
            name for name in self.names if name in self.needed and self.names[name] not in found
        ]

    def wanted(self, found: Collection[str]) -> list[str]:
        return [theirs for theirs in self.names.values() if theirs in found]

    def mapped(self, row: Row) -> Row:
        return {ours: row[theirs] for ours, theirs in self.names.items() if theirs in row}


class FindsColumns(Protocol):
    """Completes the names of columns by those that the rows have."""

    def complete(self, columns: Columns, found: Collection[str]) -> Columns:
        """`columns` for rows with the columns `found`."""

    def unused(self, columns: Columns, found: Collection[str]) -> Iterable[str]:
        """Those of `found` that other tools read, and `columns` does not. It is called with every
        row of a table whose rows have their own names."""


@runtime_checkable
class CountsChanges(Protocol):
    """A cleaner that counts what it changes."""

    counts: Mapping[str, int]


@dataclass(frozen=True)
class BadRow:
    table: int
    """Which of the split's tables it is in."""
    place: str
    """Within that table, such as `line 3`; it does not depend on the table's name."""
    problem: str
    reason: str
    code: FailureCode
    check: str | None = None
    """OpenAI's name for the check that the row fails, if it has one."""


@dataclass
class Tally:
    """Counts of the used and the bad rows of one split."""

    used: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Reason → number of bad rows."""
    checks: dict[str, int] = field(default_factory=dict)
    """OpenAI's name of a check → number of rows that fail it first."""
    codes: list[FailureCode] = field(default_factory=list)
    """The failure codes of the bad rows, each once."""
    bad_rows: list[BadRow] = field(default_factory=list)
    """The first bad rows."""
    changes: dict[str, int] = field(default_factory=dict)
    """The counts of the task's cleaner."""
    unused: list[str] = field(default_factory=list)
    """Columns that other tools read, and this task does not."""

    @property
    def bad(self) -> int:
        return sum(self.reasons.values())

    @property
    def read(self) -> int:
        return self.used + self.bad

    def add(self, table: int, place: str, error: RowError, check: str | None = None) -> None:
        self.reasons[error.reason] = self.reasons.get(error.reason, 0) + 1
        if check is not None:
            self.checks[check] = self.checks.get(check, 0) + 1
        if error.code not in self.codes:
            self.codes.append(error.code)
        if len(self.bad_rows) < SHOWN:
            problem = mask(str(error))[:_CHARACTERS]
            place = place[: _CHARACTERS // 2]
            self.bad_rows.append(BadRow(table, place, problem, error.reason, error.code, check))


@dataclass
class RowChecker:
    """Yields the usable rows of one split in order; `tally` counts all rows."""

    columns: Columns
    clean: Cleaner
    limit: int | None
    """Most rows to use; with `skips` only usable rows count, otherwise all rows."""
    skips: bool
    most_read: int | None = None
    """Most rows to read, however few of them can be used."""
    openai_checks: Mapping[str, str] = field(default_factory=dict)
    """See `service.contract.tasks.chat_format`."""
    finder: FindsColumns | None = None
    tally: Tally = field(default_factory=Tally)

    def rows(self, tables: Iterable[Table]) -> Iterator[dict[str, Any]]:
        """StageError for an unreadable file, a missing column, or a row that ends the job."""
        for number, table in enumerate(tables):
            yield from self._rows(number, table)
            if self._is_full():
                break
        if isinstance(self.clean, CountsChanges):
            self.tally.changes = dict(self.clean.counts)

    def _is_full(self) -> bool:
        counted = self.tally.used if self.skips else self.tally.read
        return self.limit == counted or self.most_read == self.tally.read

    def _rows(self, number: int, table: Table) -> Iterator[dict[str, Any]]:
        columns = self.columns
        if table.columns is not None:
            columns = self._completed(columns, table.columns)
            if lacks := columns.missing(table.columns):
                raise missing_column(columns, lacks, table.columns, table.header)
            self._note_unused(columns, table.columns)
        missing = _MissingColumns(columns)
        for place, row in table.rows(columns.wanted(table.columns or ())):
            try:
                if isinstance(row, RowError):
                    raise row
                if table.columns is None:
                    self._name_by(row, missing)
                missing.check(place, row)
                cleaned = self.clean(missing.columns.mapped(row))
            except JobEndingRowError as error:
                raise StageError(error.code, f"{place}: {error}", place=place) from error
            except RowError as error:
                within = place.removeprefix(f"{table.name}, ") if table.name else place
                self.tally.add(number, within, error, self.openai_checks.get(error.reason))
            else:
                self.tally.used += 1
                yield cleaned
            if self._is_full():
                break
        missing.conclude()

    def _completed(self, columns: Columns, found: Collection[str]) -> Columns:
        return columns if self.finder is None else self.finder.complete(columns, found)

    def _name_by(self, row: Row, missing: "_MissingColumns") -> None:
        if missing.may_be_named_otherwise:
            missing.columns = self._completed(missing.columns, row)
        self._note_unused(missing.columns, row)

    def _note_unused(self, columns: Columns, found: Collection[str]) -> None:
        if self.finder is None:
            return
        for name in self.finder.unused(columns, found):
            is_empty = isinstance(found, Mapping) and found[name] in (None, "", [], {})
            if not is_empty and name not in self.tally.unused:
                self.tally.unused.append(name)


class _MissingColumns:
    """Distinguishes rows that lack a column from a table without that column, which no row has."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._first: tuple[str, tuple[str, ...]] | None = None
        self._never = set(columns.missing(()))
        """Needed columns that no row so far has had."""
        self._rows = 0

    @property
    def may_be_named_otherwise(self) -> bool:
        """Until the rows so far have had all columns, names are not final."""
        return self._first is None or bool(self._never)

    def check(self, place: str, row: Row) -> None:
        missing = self.columns.missing(row.keys())
        self._first = self._first or (place, tuple(row))
        self._rows += 1
        self._never.intersection_update(missing)
        if self._never and self._rows == _ROWS_TO_DECIDE:
            self.conclude()
        if missing:
            names = ", ".join(repr(self.columns.names[name]) for name in missing)
            raise RowError(f"has no {names}", reason="missing_value")

    def conclude(self) -> None:
        if self._first is not None and self._never:
            place, found = self._first
            missing = [name for name in self.columns.names if name in self._never]
            raise missing_column(self.columns, missing, found, place)


def missing_column(
    columns: Columns, missing: list[str], found: tuple[str, ...], place: str | None
) -> StageError:
    """An error that names the missing columns, those that exist, and the most similar of them."""
    theirs = [columns.names[name] for name in missing]
    taken = set(columns.names.values())
    free = [name for name in found if name not in taken and len(name) <= _NAME][:_COMPARED]
    near = {
        name: match[0] for name in theirs if (match := difflib.get_close_matches(name, free, 1))
    }
    message = f"Missing column {', '.join(map(repr, theirs))}"
    message += f" ({place})" if place else ""
    shown = ", ".join(repr(name[:_NAME]) for name in found[:SHOWN]) or "none"
    message += f". Columns found: {shown}{', …' if len(found) > SHOWN else ''}."
    message += "".join(f" Did you mean {best!r} for {name!r}?" for name, best in near.items())
    if listed := [columns.names[name] for name in missing if name in columns.listed]:
        message += f" `task.label_columns` lists {', '.join(map(repr, listed))}."
    mapping = {
        name: near.get(columns.names[name], "<your column>")
        for name in missing
        if name not in columns.listed
    }
    mapped = ", ".join(f"{name}: {best}" for name, best in mapping.items())
    if mapped:
        message += f" To use columns of other names, set `dataset.columns: {{{mapped}}}`."
    return StageError(
        FailureCode.MISSING_COLUMN, message, missing=theirs, found=list(found[:SHOWN]), nearest=near
    )
