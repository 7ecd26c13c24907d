"""On which databases a test runs; sees who waits in Postgres.

Where SQL is the subject, which is in the folders `_BOTH`, tests run on SQLite and on Postgres. All
others run on SQLite alone, and on both with `--databases all`. A mark decides for a single test.
The whole services of tests/e2e run on Postgres and Redis alone: `finetune up`, which the
documentation's tests start, has SQLite and Valkey.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import pytest
from sqlalchemy import text

from service.store.database import Database

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
on_both = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)

_BOTH: Final = ("tests/store/", "tests/jobs/", "tests/migrations/")
_SECOND: Final = {"database_url": "postgres", "stack": "sqlite-valkey"}
"""The parameter of each fixture that is left out elsewhere."""


def default(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests that `--databases default` runs."""
    return [item for item in items if item.nodeid.startswith(_BOTH) or not _is_second(item)]


def _is_second(item: pytest.Item) -> bool:
    """Whether the test is on Postgres because of a fixture's parameter, not of its own mark."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    marked = {name for mark in item.iter_markers("parametrize") for name in _names(mark.args[0])}
    return any(given.get(name) == _SECOND[name] for name in _SECOND.keys() - marked)


def _names(given: str | Sequence[str]) -> Sequence[str]:
    """The parameters of a mark, which pytest takes in both forms."""
    return given.replace(" ", "").split(",") if isinstance(given, str) else given


def waits_for_a_lock(database: Database) -> bool:
    """Whether a session of this Postgres database waits."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
    with database.read() as session:
        return bool(session.scalar(text(f"{waiting} AND wait_event_type = 'Lock' LIMIT 1")))
