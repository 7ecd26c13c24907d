"""What the rows of several tasks have in common: cells that must hold text."""

from typing import Any

from worker.tasks.base import RowError


def text_of(value: Any, column: str) -> str:
    """`value` itself. RowError for what is no text, is empty, or could not be written again."""
    if not isinstance(value, str):
        raise RowError(f"`{column}` must be text, not {kind_of(value)}")
    if not value.strip():
        raise RowError(f"`{column}` is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"`{column}` is not valid Unicode: {error.reason}") from error
    return value


def kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__
