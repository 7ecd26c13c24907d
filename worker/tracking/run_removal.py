"""Removes the files of a deleted job's run, or of a deleted search's, from MLflow."""

from typing import Final

import structlog

from service.settings import Settings
from service.store.database import Database
from service.store.tracking import removals as store
from worker.tracking.trackers import Tracker, TrackerRejectedError, TrackerUnreachableError

_FIRST_RETRY, _LAST_RETRY = 10.0, 3600.0
_WHILE_REGISTERED: Final = 86400.0
_log = structlog.get_logger(__name__)


def remove(database: Database, tracker: Tracker, settings: Settings, run_id: str) -> None:
    """What is scheduled of this run; again later if MLflow cannot do it now. May run twice at once.

    The files of a version in MLflow's registry stay until a user removes the version.
    """
    with database.read() as session:
        removal = store.load(session, run_id)
    if removal is None:
        return
    wait = _tried(tracker, settings, removal) if removal.is_needed else None
    with database.write() as session:
        if wait is None:
            store.done(session, removal)
        else:
            store.postpone(session, [run_id], wait)


def _tried(tracker: Tracker, settings: Settings, removal: store.Removal) -> float | None:
    """Seconds until the next try; None if nothing is left to do."""
    try:
        return None if _removed(tracker, settings, removal) else _WHILE_REGISTERED
    except TrackerUnreachableError as error:
        _log.warning("mlflow.unreachable", run_id=removal.run_id, error=str(error))
        return min(max(removal.seconds, _FIRST_RETRY), _LAST_RETRY)
    except TrackerRejectedError as error:  # for example because a user has removed the run
        _log.warning("mlflow.rejected", run_id=removal.run_id, error=str(error))
        return None


def _removed(tracker: Tracker, settings: Settings, removal: store.Removal) -> bool:
    """False while a registered version needs some of the files."""
    if settings.mlflow_on_delete == "keep":
        return True
    if not tracker.remove_files(removal.run_id):
        _log.info("mlflow.model_is_registered", run_id=removal.run_id)
        return False
    if removal.with_run and settings.mlflow_on_delete == "delete_run":
        tracker.discard(removal.run_id)
    _log.info("mlflow.files_removed", run_id=removal.run_id)
    return True
