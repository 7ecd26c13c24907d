"""The life of a job as data: states, stages and the moves between them."""

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Stage(StrEnum):
    PREPARE = "prepare"
    TRAIN = "train"
    PUBLISH = "publish"


class Phase(StrEnum):
    """What a stage is doing, in the words that a user sees."""

    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    CHECKING = "checking"
    TOKENIZING = "tokenizing"
    LOADING = "loading"
    REFERENCE = "reference"
    BASELINE = "baseline"
    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    PREDICTING = "predicting"
    LOGGING_ARTIFACTS = "logging_artifacts"
    WRITING_MODEL_CARD = "writing_model_card"
    PUSHING = "pushing"


STAGE_ORDER: Final = (Stage.PREPARE, Stage.TRAIN, Stage.PUBLISH)

TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.PAUSED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(
        {
            JobState.QUEUED,
            JobState.PAUSING,
            JobState.CANCELLING,
            JobState.SUCCEEDED,
            JobState.FAILED,
        }
    ),
    JobState.PAUSING: frozenset(
        {
            JobState.PAUSED,
            # The user resumed the job before it was paused; if the stage has stopped, it is queued.
            JobState.RUNNING,
            JobState.CANCELLING,
            # The stage ended before it could pause.
            JobState.SUCCEEDED,
            JobState.FAILED,
        }
    ),
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    # The user has a checkpoint promoted, or the model published again.
    JobState.SUCCEEDED: frozenset({JobState.QUEUED}),
}

ENDED: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""States in which nothing more happens unless the user requests it."""

LIVE: Final = tuple(state for state in JobState if state not in ENDED)

HELD: Final = frozenset({JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING})
"""States in which a worker holds a lease on the job."""


class Action(StrEnum):
    """What a user can do to a job, in the words of the routes and of the command line."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"
    CLONE = "clone"
    PROMOTE = "promote"
    PUBLISH = "publish"
    DELETE = "delete"


_OF_ENDED: Final = (Action.CLONE, Action.PROMOTE, Action.PUBLISH, Action.DELETE)

ACTIONS: Final[dict[JobState, tuple[Action, ...]]] = {
    JobState.QUEUED: (Action.PAUSE, Action.CANCEL, Action.CLONE),
    JobState.RUNNING: (Action.PAUSE, Action.CANCEL, Action.CLONE),
    JobState.PAUSING: (Action.RESUME, Action.CANCEL, Action.CLONE),
    JobState.PAUSED: (Action.RESUME, Action.CANCEL, Action.CLONE),
    JobState.CANCELLING: (Action.CLONE,),
    JobState.CANCELLED: (Action.RETRY, *_OF_ENDED),
    JobState.FAILED: (Action.RETRY, *_OF_ENDED),
    JobState.SUCCEEDED: _OF_ENDED,
}
"""The actions that change something in each state. Repeating a request is not an error."""


def next_stage(stage: Stage) -> Stage | None:
    """The stage after `stage`; None when `stage` is the last."""
    index = STAGE_ORDER.index(stage) + 1
    return STAGE_ORDER[index] if index < len(STAGE_ORDER) else None
