"""Why a job waits, as its user sees it."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field

from service.contract.failures import Failure


class WaitingReason(StrEnum):
    BACKOFF = "backoff"
    NO_WORKER = "no_worker"
    BUSY_WORKERS = "busy_workers"
    OVER_QUOTA = "over_quota"
    INSUFFICIENT_RESOURCES = "insufficient_resources"
    PAUSED = "paused"
    QUEUED = "queued"


class Waiting(BaseModel):
    """Why the job does not run now."""

    reason: WaitingReason = Field(
        description="`backoff`: an attempt failed and is repeated at `until`; `no_worker`: no live "
        "worker can run it; `busy_workers`: all that can are busy; `over_quota`: the project has "
        "as many GPUs as it may; `insufficient_resources`: the worker's machine lacked what the "
        "job needs (disk, memory, open files, a free device), and a worker looks again at `until`, "
        "as long as it takes, which counts as no retry; `paused`: until you resume it; "
        "`queued`: a worker is free and takes the jobs of the queue in order."
    )
    message: str = Field(
        description="The reason in words.",
        examples=["retry 2 of 3: could not reach huggingface.co for org/model: name not found"],
    )
    since: datetime = Field(description="When this wait began.")
    until: datetime | None = Field(
        None, description="Of `backoff` and `insufficient_resources`: when it is tried again."
    )
    attempt: int | None = Field(
        None, description="After a failure: which retry the job waits for; 1 is the first."
    )
    of: int | None = Field(None, description="After a failure: how many retries it has.")
    failure: Failure | None = Field(None, description="Why the attempt before this wait failed.")
