"""Checks of cells that must hold text, shared by several tasks."""

from typing import Any

from worker.data.table import RowError


def text_of(value: Any, column: str) -> str:
    """Return `value`. Raises RowError unless it is non-empty text in valid Unicode."""
    text = any_text(value, column)
    if not text.strip():
        raise RowError(f"`{column}` is empty", reason="empty_text")
    return text


def any_text(value: Any, column: str) -> str:
    """As `text_of`, but the text may be empty."""
    if not isinstance(value, str):
        raise RowError(f"`{column}` must be text, not {kind_of(value)}", reason="not_text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"`{column}` is not valid Unicode: {error.reason}"
        raise RowError(problem, reason="invalid_unicode") from error
    return value


def kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__
