"""Writing the checked rows of any source into an Arrow file, in one streaming pass."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.arrow_writer import ArrowWriter

from worker.data.cleaning import Checking, Tally
from worker.data.prepared_size import FLUSHED, UNLIMITED, SizeLimit, text_bytes
from worker.data.table import Table

_REPORT_EVERY = 1000  # rows


@dataclass(frozen=True)
class Examples:
    """The checks and the schema of one split's rows."""

    checking: Checking
    schema: Any
    """The `datasets.Features` of cleaned rows."""
    size: SizeLimit = UNLIMITED

    def write(
        self, tables: Iterable[Table], target: Path, progress: Callable[[int], None]
    ) -> Tally:
        """Check every row of `tables`, up to the limit, and write the usable ones."""
        count = held = 0
        with ArrowWriter(path=str(target), features=self.schema) as writer:
            for row in self.checking.rows(tables):
                writer.write(row)
                count += 1
                held += text_bytes(row)
                if held > FLUSHED:
                    writer.write_examples_on_file()
                    held = 0
                    self.size.check(target, count)
                if count % _REPORT_EVERY == 0:
                    progress(count)
            if count:
                writer.finalize()
        progress(count)
        return self.checking.tally
