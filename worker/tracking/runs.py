"""One run for each job and for each search, whoever creates it, and how it ends."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from service.contract.states import JobState
from service.store.database import Database
from service.store.tracking import jobs
from service.store.tracking.jobs import Tracked, TrackedJob
from service.store.tracking.searches import TrackedSearch
from worker.tracking.trackers import NewRun, RunRef, RunStatus, Tracker

Subject = TypeVar("Subject", TrackedJob, TrackedSearch)
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
        kept = jobs.adopt_run(session, table, row_id, first.experiment_id, first.run_id)
    discard_others(tracker, found, kept)
    return kept


def set_status(
    tracker: Tracker,
    run_id: str,
    subject: Subject,
    load: Callable[[], Subject | None],
    end_tags: Callable[[Subject], Mapping[str, str]],
    all_end_tags: Sequence[str],
) -> None:
    """Set the run's status to that of its job or search.

    Each writer reads the row again afterwards and corrects the status, in case the job was retried,
    or the search extended or ended, in between.
    """
    now: Subject | None = subject
    while now is not None:
        if now.ended_at is None:
            tracker.reopen(run_id, all_end_tags)
        else:
            tracker.end(run_id, STATUS[now.state], now.ended_at, end_tags(now))
        before, now = now, load()
        if now is None or now.ended_at == before.ended_at:
            return


def discard_others(tracker: Tracker, found: list[RunRef], kept: str | None) -> None:
    for run in found:
        if run.run_id != kept:
            tracker.discard(run.run_id)
