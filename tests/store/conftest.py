import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.store.database import Database


@pytest.fixture
def sqlite_database(sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    """For tests with many cases that behave the same on both databases."""
    path = tmp_path / "finetune.db"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}")
    yield database
    database.dispose()
