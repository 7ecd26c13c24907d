"""Marks tests for which one kind of database is enough; sees who waits in Postgres.

Both kinds run the same statements: what they do differently is tested in tests/store.
"""

import pytest
from sqlalchemy import text

from service.store.database import Database

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)


def waits_for_a_lock(database: Database) -> bool:
    """Whether a session of this Postgres database waits."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
    with database.read() as session:
        return bool(session.scalar(text(f"{waiting} AND wait_event_type = 'Lock' LIMIT 1")))
