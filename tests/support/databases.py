"""On which database a test runs, where one kind is enough.

Both kinds run the same statements: what they do differently is tested in tests/store.
"""

import pytest

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
