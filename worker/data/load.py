"""Writing the checked rows of any source into an Arrow file, in one streaming pass."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from datasets.arrow_writer import ArrowWriter

from worker.data.cleaning import RowChecker, Tally
from worker.data.prepared_size import FLUSHED, UNLIMITED, SizeLimit, text_bytes
from worker.data.table import Table

_REPORT_EVERY = 1000  # rows


def write_examples(
    checking: RowChecker,
    schema: Any,
    tables: Iterable[Table],
    target: Path,
    progress: Callable[[int], None],
    size: SizeLimit = UNLIMITED,
) -> Tally:
    """Check every row of `tables`, up to the limit, and write the usable ones. `schema`: the
    `datasets.Features` of cleaned rows."""
    count = held = 0
    with ArrowWriter(path=str(target), features=schema) as writer:
        for row in checking.rows(tables):
            writer.write(row)
            count += 1
            held += text_bytes(row)
            if held > FLUSHED:
                writer.write_examples_on_file()
                held = 0
                size.check(target, count)
            if count % _REPORT_EVERY == 0:
                progress(count)
        if count:
            writer.finalize()
    progress(count)
    return checking.tally
