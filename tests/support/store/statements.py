"""The statements that a database is sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from service.store.database import Database


@contextmanager
def sent(database: Database) -> Iterator[list[str]]:
    """Those of all connections, as they run."""
    statements: list[str] = []

    def note(*call: Any) -> None:
        statements.append(call[2])

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
