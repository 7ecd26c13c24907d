"""Rows of any source → checked Arrow file of the task's own columns, in one streaming pass."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.arrow_writer import ArrowWriter

from service.contract.failures import FailureCode, StageError
from worker.data.table import Row, Table
from worker.tasks.base import Cleaner, RowError

_REPORT_EVERY = 1000  # rows


@dataclass(frozen=True)
class Columns:
    """The task's columns and the user's names for them."""

    names: Mapping[str, str]
    """The task's column → the user's."""
    needed: frozenset[str]
    """The task's columns that every row must have."""

    @classmethod
    def of(
        cls,
        known: Iterable[str],
        required: Collection[str],
        spared: Collection[str],
        mapping: Mapping[str, str],
    ) -> "Columns":
        """A column that the user maps is needed like a required one, unless it is `spared`."""
        names = {column: mapping.get(column, column) for column in known}
        strange = sorted(mapping.keys() - names.keys())
        if strange:
            raise StageError(
                FailureCode.INVALID_OPTION,
                f"`dataset.columns` maps {', '.join(map(repr, strange))}, but the task's columns "
                f"are {', '.join(names)}",
            )
        return cls(names, frozenset(required) | frozenset(mapping).difference(spared))

    def missing(self, found: Collection[str]) -> list[str]:
        return [
            name for name in self.names if name in self.needed and self.names[name] not in found
        ]

    def wanted(self, found: Collection[str]) -> list[str]:
        return [theirs for theirs in self.names.values() if theirs in found]

    def mapped(self, row: Row) -> Row:
        return {ours: row[theirs] for ours, theirs in self.names.items() if theirs in row}


@dataclass(frozen=True)
class Examples:
    """How the rows of one split are read and where they go."""

    columns: Columns
    clean: Cleaner
    schema: Any
    """The `datasets.Features` of cleaned rows."""
    limit: int | None

    def write(
        self, split: str, tables: Iterable[Table], target: Path, progress: Callable[[int], None]
    ) -> int:
        """Check every row of `tables`, up to the limit, and write it. Returns their number.

        StageError names the first bad row, or says that there is none at all.
        """
        count = 0
        with ArrowWriter(path=str(target), features=self.schema) as writer:
            for row in self._rows(tables):
                writer.write(row)
                count += 1
                if count % _REPORT_EVERY == 0:
                    progress(count)
            if count == 0:
                raise StageError(
                    FailureCode.EMPTY_DATASET, f"The {split} split has no rows", split=split
                )
            writer.finalize()
        progress(count)
        return count

    def _rows(self, tables: Iterable[Table]) -> Iterable[dict[str, Any]]:
        left = self.limit
        for table in tables:
            for row in self._cleaned(table):
                yield row
                if left is not None:
                    left -= 1
                    if left == 0:
                        return

    def _cleaned(self, table: Table) -> Iterable[dict[str, Any]]:
        found = table.columns
        if found is not None:
            self._check_names(found, place=None)
        for place, row in table.rows(self.columns.wanted(found or ())):
            if found is None:  # the first row stands for the names of all
                self._check_names(found := tuple(row), place)
            missing = [self.columns.names[name] for name in self.columns.missing(row.keys())]
            if missing:
                problem = f"has no {', '.join(map(repr, missing))}"
                raise StageError(FailureCode.UNREADABLE_ROW, f"{place}: {problem}", place=place)
            try:
                yield self.clean(self.columns.mapped(row))
            except RowError as error:
                raise StageError(error.code, f"{place}: {error}", place=place) from error

    def _check_names(self, found: tuple[str, ...], place: str | None) -> None:
        missing = self.columns.missing(found)
        if missing:
            raise missing_column(self.columns, missing, found, place)


def missing_column(
    columns: Columns, missing: list[str], found: tuple[str, ...], place: str | None
) -> StageError:
    """Names what is missing, what there is, and the nearest name of it."""
    theirs = [columns.names[name] for name in missing]
    taken = set(columns.names.values())
    free = [name for name in found if name not in taken]
    near = {
        name: match[0] for name in theirs if (match := difflib.get_close_matches(name, free, 1))
    }
    message = f"Missing column {', '.join(map(repr, theirs))}"
    message += f" ({place})" if place else ""
    message += f". Columns found: {', '.join(map(repr, found)) or 'none'}."
    message += "".join(f" Did you mean {best!r} for {name!r}?" for name, best in near.items())
    return StageError(
        FailureCode.MISSING_COLUMN, message, missing=theirs, found=list(found), nearest=near
    )
