"""Marks tests for which one kind of database is enough.

Both kinds run the same statements: what they do differently is tested in tests/store.
"""

import pytest

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
