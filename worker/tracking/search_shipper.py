"""Sends a search from SQL to the tracker: one search is one run, above those of its trials.

Any number of workers may do so at once: everything is read from SQL and may be sent twice.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from service.contract.fields.section import Acceptance
from service.contract.search.spec import SEARCH_VERSION, SearchSpec
from service.contract.spec import tracking_names
from service.contract.states import JobState
from service.store.database import Database
from service.store.tables.searches import SearchRow
from service.store.tracking import searches as store
from service.store.tracking.jobs import retry_in
from service.store.tracking.searches import TrackedSearch
from service.system import escaping
from worker.tracking import runs, search_content, search_files
from worker.tracking.search_content import Progress
from worker.tracking.trackers import (
    NewRun,
    Tracker,
    TrackerRejectedError,
    TrackerUnreachableError,
    log_missing,
)

_PROGRESS_TAG: Final = "mlflow.finetune.sentTrials"
"""How far the scores have been sent. MLflow hides tags that begin with `mlflow.`."""
_TRIALS_PER_PAGE: Final = 500
_SYNC_SECONDS: Final = 120.0
_log = structlog.get_logger(__name__)


def ensure_run(database: Database, tracker: Tracker, search_id: str) -> str | None:
    """The search's run, created if needed; None if there is none, and then trials still get their
    own runs. Raises TrackerUnreachableError."""
    search = _load(database, search_id)
    if search is None:
        return None
    try:
        return _run_of(database, tracker, search)
    except TrackerRejectedError as error:
        _log.warning("mlflow.run_unavailable", search_id=search_id, error=str(error))
        return None


def sync(database: Database, tracker: Tracker, search_id: str) -> bool:
    """Send everything that is missing; True if the run is complete and has the final status.

    An unreachable tracker raises nothing: the reconciler sends the search's id again later. Starts
    no new request after two minutes.
    """
    search = _load(database, search_id)
    if search is None or search.final:
        return True
    if search.ended_at is None and search.tracked_version >= search.version:
        return False  # the message came twice
    if search.spec_version > SEARCH_VERSION:
        _log.warning("search.version_unsupported", spec_version=search.spec_version)
        return False
    try:
        return _ship(database, tracker, search, time.monotonic() + _SYNC_SECONDS)
    except TrackerUnreachableError as error:
        _log.warning("mlflow.unreachable", search_id=search_id, error=str(error))
        return _postpone(database, search_id)
    except TrackerRejectedError as error:
        # For example because the user has deleted the run.
        _log.warning("mlflow.rejected", search_id=search_id, error=str(error))
        return _complete(database, search)


def _ship(database: Database, tracker: Tracker, search: TrackedSearch, until: float) -> bool:
    run_id = None
    if _has_content(tracker, search):
        run_id = _run_of(database, tracker, search)
    if run_id is not None:
        spec = _spec(search)
        # Also what a process left that was killed between creating a run and comparing.
        new = _new_run(search, spec)
        runs.discard_others(tracker, tracker.find(new.experiment, new.tags), run_id)
        tracker.describe(run_id, search_content.description(search, spec))
        _send_scores(database, tracker, search, run_id, until)
        if search.ended_at is not None:
            _send_files(database, tracker, search, run_id, until)
        load = partial(_load, database, search.id)
        tags = search_content.END_TAGS
        runs.set_status(tracker, run_id, search, load, search_content.end_tags, tags)
    return _complete(database, search)


def _has_content(tracker: Tracker, search: TrackedSearch) -> bool:
    """No run is created for a search that has made no trial, unless it has failed to."""
    if search.run_id is not None or search.made or search.state == JobState.FAILED:
        return True
    # One may exist whose id was lost with the response that created it.
    new = _new_run(search, _spec(search))
    return search.ended_at is not None and bool(tracker.find(new.experiment, new.tags))


def _send_scores(
    database: Database, tracker: Tracker, search: TrackedSearch, run_id: str, until: float
) -> None:
    objectives = _spec(search).objectives
    progress = Progress.read(tracker.tag(run_id, _PROGRESS_TAG), len(objectives))
    while True:
        if time.monotonic() > until:
            raise TrackerUnreachableError("too slow: the other trials are sent next time")
        with database.read() as session:
            page = store.ended_after(session, search.id, progress.ended, _TRIALS_PER_PAGE)
        if not page:
            return
        points, progress = search_content.points(objectives, page, progress)
        tracker.log_points(run_id, points)
        # After its points: if this is lost, they are sent again, and stored once.
        tracker.set_tag(run_id, _PROGRESS_TAG, progress.text())


def _send_files(
    database: Database, tracker: Tracker, search: TrackedSearch, run_id: str, until: float
) -> None:
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        files = search_files.write(database, search.id, _spec(search), Path(folder))
        # All of them: those of an earlier end may have the same size.
        if not log_missing(tracker, run_id, files, until, files):
            raise TrackerUnreachableError("too slow: the other files are sent next time")


def _load(database: Database, search_id: str) -> TrackedSearch | None:
    with database.read() as session:
        return store.load(session, search_id)


def _spec(search: TrackedSearch) -> SearchSpec:
    return SearchSpec.model_validate(search.spec, context=Acceptance())


def _new_run(search: TrackedSearch, spec: SearchSpec) -> NewRun:
    tracking = spec.job.tracking
    name = spec.name or tracking.run_name or spec.job.name or search.id
    return NewRun(
        tracking_names.experiment(search.project, tracking.experiment_name),
        escaping.line(name),
        search_content.own_tags(search.id),
        search.created_at,
    )


def _run_of(database: Database, tracker: Tracker, search: TrackedSearch) -> str | None:
    """The id of the search's run; None if the tracker stores nothing."""
    if search.run_id is not None:
        return search.run_id
    new = _new_run(search, _spec(search))
    return runs.adopted(database, tracker, new, SearchRow, search.id)


def _complete(database: Database, search: TrackedSearch) -> bool:
    with database.write(audited=False) as session:
        if search.ended_at is not None:
            return store.finish(session, search.id, search.version)
        store.advance(session, search.id, search.version)
    return False


def _postpone(database: Database, search_id: str) -> bool:
    """Try again later; soon while the search lives."""
    search = _load(database, search_id)
    if search is None:
        return True
    is_live = search.ended_at is None
    wait = store.LIVE_SECONDS if is_live else runs.retry_wait(search.seconds_since_end)
    if wait is None:
        return _complete(database, search)
    with database.write(audited=False) as session:
        retry_in(session, SearchRow, search_id, wait)
    return False
