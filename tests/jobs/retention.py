"""Retention with a temporary home."""

from pathlib import Path
from typing import Any

from service.jobs.retention import Retention
from service.settings import Settings
from service.store.database import Database

HOUR, DAY = 3600.0, 86400.0


def retention_of(database: Database, home: Path, **limits: Any) -> Retention:
    return Retention(database, Settings(home=home, **limits))
