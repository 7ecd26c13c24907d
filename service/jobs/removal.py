"""Removes files that a committed transaction has scheduled for removal."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.store import removals
from service.store.database import Database

log = structlog.get_logger(__name__)


def remove_paths(database: Database, home: Path, paths: Iterable[str]) -> None:
    """Remove these paths, relative to `home`, and their rows; failures are retried later.

    Any number of processes may do this at once.
    """
    for path in paths:
        try:
            remove_tree(home / path)
            with database.write() as session:
                removals.forget(session, path)
        except (OSError, SQLAlchemyError) as error:
            log.warning("removal.failed", path=path, error=str(error))


def remove_tree(folder: Path) -> None:
    """Remove a folder with its contents, or a file; it may be missing already."""
    if folder.is_file():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, onerror=_unless_missing)


def _unless_missing(_function: Any, _path: str, info: Any) -> None:
    error = info[1]
    if not isinstance(error, FileNotFoundError):
        raise error
