"""What a row of a language model's data must look like."""

from typing import Any

from worker.data.table import Row
from worker.tasks.common.cells import any_text


def clean(row: Row) -> dict[str, Any]:
    """Any text will do, an empty one as well: it may be a line between two paragraphs."""
    return {"text": any_text(row["text"], "text")}
