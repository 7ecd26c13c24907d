"""The life of a search and of its trials."""

from enum import StrEnum
from typing import Final

from service.contract.states import ENDED, JobState


class TrialState(StrEnum):
    RUNNING = "running"
    """Its job waits or runs."""
    PAUSED = "paused"
    """It waits at a rung: it continues if it is among the best later."""
    COMPLETE = "complete"
    PRUNED = "pruned"
    """Ended early, because others were better."""
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER: Final = frozenset(
    {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED, TrialState.CANCELLED}
)
"""States in which a trial stays."""

TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    # Until the first trial is made. `cancelling`: if the specs of all trials were refused.
    JobState.QUEUED: frozenset(
        {
            JobState.RUNNING,
            JobState.PAUSED,
            JobState.CANCELLING,
            JobState.CANCELLED,
            JobState.FAILED,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.PAUSING, JobState.CANCELLING, JobState.SUCCEEDED, JobState.FAILED}
    ),
    JobState.PAUSING: frozenset({JobState.PAUSED, JobState.RUNNING, JobState.CANCELLING}),
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING}),
    # Also on the way to `failed`: its trials are cancelled first.
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.FAILED}),
    # The user asks for more trials.
    JobState.SUCCEEDED: frozenset({JobState.RUNNING}),
    JobState.FAILED: frozenset({JobState.RUNNING}),
    JobState.CANCELLED: frozenset({JobState.RUNNING}),
}
"""A search's states are a job's, and mean the same."""


class SearchAction(StrEnum):
    """What a user can do to a search, in the words of the routes and of the command line."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    EXTEND = "extend"
    DELETE = "delete"


def actions(state: JobState) -> tuple[SearchAction, ...]:
    """The actions that change something. Repeating a request is not an error."""
    if state in ENDED:
        return (SearchAction.EXTEND, SearchAction.DELETE)
    if state is JobState.CANCELLING:
        return ()
    first = SearchAction.RESUME if state in _PAUSED else SearchAction.PAUSE
    return (first, SearchAction.CANCEL, SearchAction.EXTEND)


_PAUSED: Final = (JobState.PAUSING, JobState.PAUSED)
