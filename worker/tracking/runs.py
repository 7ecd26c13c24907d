"""One run for each job and for each search, whoever creates it, and how it ends."""

from collections.abc import Mapping
from typing import Final

from service.contract.states import JobState
from service.store import tracking
from service.store.database import Database
from service.store.tracking import Tracked
from worker.tracking.trackers import NewRun, RunRef, RunStatus, Tracker

STATUS: Final[Mapping[str, RunStatus]] = {
    JobState.SUCCEEDED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "KILLED",
}
"""Of the run of a job or a search that has ended so."""
_FIRST_RETRY, _LAST_RETRY = 10.0, 600.0
_GIVE_UP_AFTER: Final = 7 * 86400.0


def retry_wait(seconds_since_end: float) -> float | None:
    """Seconds until the next try: as many as have passed since the end, at most ten minutes. None
    after a week."""
    if seconds_since_end > _GIVE_UP_AFTER:
        return None
    return min(max(seconds_since_end, _FIRST_RETRY), _LAST_RETRY)


def adopted(
    database: Database, tracker: Tracker, run: NewRun, table: Tracked, row_id: str
) -> str | None:
    """The id of the run that is kept; None if the tracker stores nothing.

    The run is searched before and after it is created, because the response to the creation may be
    lost and two processes may create one each. SQL decides which run is kept.
    """
    found = tracker.find(run.experiment, run.tags)
    if not found:
        tracker.create(run)
        found = tracker.find(run.experiment, run.tags)
    if not found:
        return None
    # None is kept if its job or search was deleted in the meantime.
    with database.write(audited=False) as session:
        first = found[0]
        kept = tracking.adopt_run(session, table, row_id, first.experiment_id, first.run_id)
    _discard(tracker, found, kept)
    return kept


def discard_others(tracker: Tracker, run: NewRun, kept: str) -> None:
    """Remove what a process left that was killed between creating a run and comparing."""
    _discard(tracker, tracker.find(run.experiment, run.tags), kept)


def _discard(tracker: Tracker, found: list[RunRef], kept: str | None) -> None:
    for run in found:
        if run.run_id != kept:
            tracker.discard(run.run_id)
