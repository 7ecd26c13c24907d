"""Removes files that a committed transaction has scheduled for removal."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.store import retention
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
                retention.removed(session, path)
        except (OSError, SQLAlchemyError) as error:
            log.warning("removal.failed", path=path, error=str(error))


def remove_tree(folder: Path) -> None:
    """Remove a folder with its contents, or a file; a missing file is no error."""
    if folder.is_file():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, onerror=_unless_gone)


def _unless_gone(_function: Any, _path: str, info: Any) -> None:
    error = info[1]
    if not isinstance(error, FileNotFoundError):
        raise error
