"""Rows of any source → checked Arrow file of the task's own columns, in one streaming pass."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.arrow_writer import ArrowWriter

from worker.data.cleaning import Checking, Tally
from worker.data.table import Table

_REPORT_EVERY = 1000  # rows


@dataclass(frozen=True)
class Examples:
    """How the rows of one split are checked and where they go."""

    checking: Checking
    schema: Any
    """The `datasets.Features` of cleaned rows."""

    def write(
        self, tables: Iterable[Table], target: Path, progress: Callable[[int], None]
    ) -> Tally:
        """Check every row of `tables`, up to the limit, and write those that can be used."""
        count = 0
        with ArrowWriter(path=str(target), features=self.schema) as writer:
            for row in self.checking.rows(tables):
                writer.write(row)
                count += 1
                if count % _REPORT_EVERY == 0:
                    progress(count)
            if count:
                writer.finalize()
        progress(count)
        return self.checking.tally
