"""Cleans the rows of language modelling data sets."""

from typing import Any

from worker.data.table import Row
from worker.tasks.common.cells import any_text


def clean(row: Row) -> dict[str, Any]:
    """Any text is valid, even an empty one: it may be the line between two paragraphs."""
    return {"text": any_text(row["text"], "text")}
