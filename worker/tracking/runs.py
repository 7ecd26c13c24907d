"""One run for each job and for each search, whoever creates it, and how it ends."""

from collections.abc import Callable, Mapping
from typing import Final

from service.contract.states import JobState
from worker.tracking.trackers import NewRun, RunRef, RunStatus, Tracker

STATUS: Final[Mapping[str, RunStatus]] = {
    JobState.SUCCEEDED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "KILLED",
}
"""Of the run of a job or a search that has ended so."""


def adopted(tracker: Tracker, run: NewRun, adopt: Callable[[RunRef], str | None]) -> str | None:
    """The id of the run that is kept; None if the tracker stores nothing.

    The run is searched before and after it is created, because the response to the creation may be
    lost and two processes may create one each. `adopt` lets SQL decide which run is kept.
    """
    found = tracker.find(run.experiment, run.tags)
    if not found:
        tracker.create(run)
        found = tracker.find(run.experiment, run.tags)
    if not found:
        return None
    # None is kept if its job or search was deleted in the meantime.
    kept = adopt(found[0])
    _discard(tracker, found, kept)
    return kept


def discard_others(tracker: Tracker, run: NewRun, kept: str) -> None:
    """Remove what a process left that was killed between creating a run and comparing."""
    _discard(tracker, tracker.find(run.experiment, run.tags), kept)


def _discard(tracker: Tracker, found: list[RunRef], kept: str | None) -> None:
    for run in found:
        if run.run_id != kept:
            tracker.discard(run.run_id)
