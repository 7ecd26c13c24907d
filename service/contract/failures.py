"""Every way an attempt can end badly: what state follows, whether a retry helps, what to do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, Field

from service.contract.states import JobState


class FailureCode(StrEnum):
    # The user's data.
    MISSING_COLUMN = "missing_column"
    UNREADABLE_ROW = "unreadable_row"
    LABEL_MISMATCH = "label_mismatch"
    EMPTY_DATASET = "empty_dataset"
    DATASET_NOT_FOUND = "dataset_not_found"
    DATASET_ACCESS_DENIED = "dataset_access_denied"
    UNSUPPORTED_FORMAT = "unsupported_format"
    DATA_CHANGED = "data_changed"
    # The user's model.
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_ACCESS_DENIED = "model_access_denied"
    UNSAFE_WEIGHTS = "unsafe_weights"
    UNSUPPORTED_ARCHITECTURE = "unsupported_architecture"
    SLOW_TOKENIZER = "slow_tokenizer"
    SEQUENCE_TOO_LONG = "sequence_too_long"
    NO_PAD_TOKEN = "no_pad_token"
    # Training.
    INVALID_OPTION = "invalid_option"
    OUT_OF_MEMORY = "out_of_memory"
    NON_FINITE_LOSS = "non_finite_loss"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    # The machine.
    DISK_FULL = "disk_full"
    WORKER_LOST = "worker_lost"
    HUNG = "hung"
    CRASH_LIMIT = "crash_limit"
    DEVICE_ERROR = "device_error"
    SHARED_MEMORY_FULL = "shared_memory_full"
    GPU_USED_TWICE = "gpu_used_twice"
    # Limits and requests of the user.
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    # External services.
    HUB_UNAUTHORIZED = "hub_unauthorized"
    HUB_FORBIDDEN = "hub_forbidden"
    HUB_CONFLICT = "hub_conflict"
    HUB_RATE_LIMITED = "hub_rate_limited"
    HUB_UNAVAILABLE = "hub_unavailable"
    HUB_REJECTED = "hub_rejected"
    NETWORK = "network"
    # A bug in the service.
    INTERNAL = "internal"


@dataclass(frozen=True, kw_only=True)
class FailureRule:
    """What follows from a failure code.

    `state` is the job's state when the failure is final, `retryable` means that the same attempt
    can succeed later (infrastructure), `action` tells the user what to do.
    """

    retryable: bool
    action: str
    state: JobState = JobState.FAILED
    is_crash: bool = False
    """It does not count against `max_retries` as long as the job makes progress in between."""


RULES: Final[dict[FailureCode, FailureRule]] = {
    FailureCode.MISSING_COLUMN: FailureRule(
        retryable=False,
        action="Map the columns with `dataset.columns`, or rename them in the data.",
    ),
    FailureCode.UNREADABLE_ROW: FailureRule(
        retryable=False,
        action="Correct or remove the named rows, upload the file again and submit a new job; or "
        "leave "
        "them out with `dataset.on_bad_row: skip`.",
    ),
    FailureCode.LABEL_MISMATCH: FailureRule(
        retryable=False,
        action="Correct the labels that the message names, or list all labels in "
        "`task.label_names`; or "
        "leave those rows out with `dataset.on_bad_row: skip`.",
    ),
    FailureCode.EMPTY_DATASET: FailureRule(
        retryable=False,
        action="Give a split with at least one usable row; check slices, filters and the format.",
    ),
    FailureCode.DATASET_NOT_FOUND: FailureRule(
        retryable=False,
        action="Check the name, config, revision and splits in `dataset`, or the file id or path.",
    ),
    FailureCode.DATASET_ACCESS_DENIED: FailureRule(
        retryable=False,
        action="Request access on the data set's page, or ask the operator to set a Hub token "
        "with access.",
    ),
    FailureCode.UNSUPPORTED_FORMAT: FailureRule(
        retryable=False,
        action="Set `dataset.format` to the format the file really has, or convert the file.",
    ),
    FailureCode.DATA_CHANGED: FailureRule(
        retryable=False,
        action="Clone the job: a new job can use the changed data, but this job's checkpoints "
        "cannot.",
    ),
    FailureCode.MODEL_NOT_FOUND: FailureRule(
        retryable=False, action="Check `model.name_or_path` and `model.revision`, or `model.job`."
    ),
    FailureCode.MODEL_ACCESS_DENIED: FailureRule(
        retryable=False,
        action="Accept the model's licence on its page, or ask the operator to set a Hub token "
        "with "
        "access. The files of a local folder must be readable by the worker's user.",
    ),
    FailureCode.UNSAFE_WEIGHTS: FailureRule(
        retryable=False,
        action="Choose a revision with safetensors weights, or run the command in the message "
        "and use the "
        "folder that it writes.",
    ),
    FailureCode.UNSUPPORTED_ARCHITECTURE: FailureRule(
        retryable=False, action="Choose a model whose architecture has a head for this task."
    ),
    FailureCode.SLOW_TOKENIZER: FailureRule(
        retryable=False,
        action="Set `model.tokenizer_name` to a repository that holds a fast tokenizer "
        "(tokenizer.json).",
    ),
    FailureCode.SEQUENCE_TOO_LONG: FailureRule(
        retryable=False,
        action="Lower the task's `max_seq_length` to the number of positions that the model has.",
    ),
    FailureCode.NO_PAD_TOKEN: FailureRule(
        retryable=False, action="Set `model.tokenizer_name` to a tokenizer that has a pad token."
    ),
    FailureCode.INVALID_OPTION: FailureRule(
        retryable=False, action="Change the option that the message names and submit a new job."
    ),
    FailureCode.OUT_OF_MEMORY: FailureRule(
        retryable=False,
        action="Halve `per_device_train_batch_size` and double `gradient_accumulation_steps`, "
        "shorten the sequences, or use bf16.",
    ),
    FailureCode.NON_FINITE_LOSS: FailureRule(
        retryable=False,
        action="Lower `learning_rate`, add `warmup_steps`, or use bf16 or fp32 instead of fp16.",
    ),
    FailureCode.CHECKPOINT_UNREADABLE: FailureRule(
        retryable=False,
        action="Submit the job again; keep more checkpoints with `save_total_limit`.",
    ),
    FailureCode.DISK_FULL: FailureRule(
        retryable=False,
        action="Free space under FINETUNE_HOME or lower `save_total_limit`, then submit again.",
    ),
    FailureCode.WORKER_LOST: FailureRule(
        retryable=True,
        action="No action needed: the job resumes from its latest checkpoint on the next free "
        "worker.",
        is_crash=True,
    ),
    FailureCode.HUNG: FailureRule(
        retryable=True,
        action="No action needed yet: the job resumes from its latest checkpoint. If it hangs "
        "again, set "
        "`training.dataloader_num_workers: 0`, or ask the operator to raise "
        "FINETUNE_HUNG_SECONDS.",
        is_crash=True,
    ),
    FailureCode.CRASH_LIMIT: FailureRule(
        retryable=False,
        action="Read the job's log: several attempts in a row crashed without any progress. The "
        "message "
        "has the reason of the last one.",
    ),
    FailureCode.DEVICE_ERROR: FailureRule(
        retryable=True,
        action="No action needed yet: the stage is retried. If it fails again, check the "
        "device's health.",
    ),
    FailureCode.SHARED_MEMORY_FULL: FailureRule(
        retryable=False,
        action="Give the worker's container more shared memory (`shm_size` in docker-compose.yml, "
        "`--shm-size` of docker run; outside containers: the size of /dev/shm), then retry the "
        "job.",
    ),
    FailureCode.GPU_USED_TWICE: FailureRule(
        retryable=False,
        action="Name each GPU once in the worker's CUDA_VISIBLE_DEVICES, and no two slices of "
        "one GPU "
        "(MIG) for one job; then retry the job. `finetune doctor` shows what the worker sees.",
    ),
    FailureCode.TIMEOUT: FailureRule(
        retryable=False, action="Raise the limit that the message names, or make the job smaller."
    ),
    FailureCode.CANCELLED: FailureRule(
        retryable=False,
        action="No action needed: the job was cancelled on request.",
        state=JobState.CANCELLED,
    ),
    FailureCode.HUB_UNAUTHORIZED: FailureRule(
        retryable=False,
        action="Ask the operator to set FINETUNE_HUB_TOKEN to a valid token with write access.",
    ),
    FailureCode.HUB_FORBIDDEN: FailureRule(
        retryable=False,
        action="Choose a `hub.model_id` in a namespace that the operator's token may write to.",
    ),
    FailureCode.HUB_CONFLICT: FailureRule(
        retryable=True,
        action="No action needed yet: the push is retried. If it fails again, choose another "
        "`hub.model_id`.",
    ),
    FailureCode.HUB_RATE_LIMITED: FailureRule(
        retryable=True,
        action="No action needed yet: the request is retried later. If it fails again, submit "
        "fewer jobs at once.",
    ),
    FailureCode.HUB_UNAVAILABLE: FailureRule(
        retryable=True,
        action="No action needed yet: the request is retried later. Check the Hub's status page.",
    ),
    FailureCode.HUB_REJECTED: FailureRule(
        retryable=False,
        action="Fix what the Hub's response names, for example `hub.model_id` or `hub.revision`.",
    ),
    FailureCode.NETWORK: FailureRule(
        retryable=True,
        action="No action needed yet: the request is retried later. Check the worker's network "
        "connection.",
    ),
    FailureCode.INTERNAL: FailureRule(
        retryable=False,
        action="This is a bug in the service: read the job's log and report it with the job id.",
    ),
}


class Failure(BaseModel):
    """Why a job or an attempt failed, in words for its user; never a traceback."""

    code: FailureCode
    message: str = Field(description="What happened, with the names and numbers of this job.")
    action: str = Field(description="What to do about it.")
    details: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, code: FailureCode, message: str, **details: Any) -> "Failure":
        """A failure with the action that its code prescribes."""
        return cls(code=code, message=message, action=RULES[code].action, details=details)


class StageError(Exception):
    """Raised inside a stage to end it with a failure code; its message is shown to the user."""

    def __init__(self, code: FailureCode, message: str, **details: Any) -> None:
        super().__init__(message)
        self.failure = Failure.of(code, message, **details)
