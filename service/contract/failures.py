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
    # The user's wish.
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    # The outside.
    HUB_UNAUTHORIZED = "hub_unauthorized"
    HUB_FORBIDDEN = "hub_forbidden"
    HUB_CONFLICT = "hub_conflict"
    HUB_RATE_LIMITED = "hub_rate_limited"
    HUB_UNAVAILABLE = "hub_unavailable"
    HUB_REJECTED = "hub_rejected"
    NETWORK = "network"
    # Ours.
    INTERNAL = "internal"


@dataclass(frozen=True)
class FailureRule:
    """What follows from a failure code.

    `state` is where the job goes when the failure is final, `retryable` says that the same attempt
    can succeed later (infrastructure), `action` tells the user what to do.
    """

    retryable: bool
    action: str
    state: JobState = JobState.FAILED
    is_crash: bool = False
    """It may come as often as the job gets further in between; `max_retries` is for the others."""


RULES: Final[dict[FailureCode, FailureRule]] = {
    FailureCode.MISSING_COLUMN: FailureRule(
        False, "Map the columns with `dataset.columns`, or rename them in the data."
    ),
    FailureCode.UNREADABLE_ROW: FailureRule(
        False,
        "Correct or remove the named rows, upload the file again and submit a new job; or leave "
        "them out with `dataset.on_bad_row: skip`.",
    ),
    FailureCode.LABEL_MISMATCH: FailureRule(
        False,
        "Correct the labels that the message names, or list all labels in `task.label_names`; or "
        "leave those rows out with `dataset.on_bad_row: skip`.",
    ),
    FailureCode.EMPTY_DATASET: FailureRule(
        False, "Give a split with at least one usable row; check slices, filters and the format."
    ),
    FailureCode.DATASET_NOT_FOUND: FailureRule(
        False, "Check the name, config, revision and splits in `dataset`, or the file id or path."
    ),
    FailureCode.DATASET_ACCESS_DENIED: FailureRule(
        False,
        "Ask for access on the data set's page, or have the operator set a Hub token that has it.",
    ),
    FailureCode.UNSUPPORTED_FORMAT: FailureRule(
        False, "Set `dataset.format` to the format the file really has, or convert the file."
    ),
    FailureCode.DATA_CHANGED: FailureRule(
        False, "Clone the job: a new one may have other data, this one's checkpoints may not."
    ),
    FailureCode.MODEL_NOT_FOUND: FailureRule(
        False, "Check `model.name_or_path` and `model.revision`, or `model.job`."
    ),
    FailureCode.MODEL_ACCESS_DENIED: FailureRule(
        False,
        "Accept the model's licence on its page, or have the operator set a Hub token with access; "
        "a folder's files have to be readable for the worker's user.",
    ),
    FailureCode.UNSAFE_WEIGHTS: FailureRule(
        False,
        "Choose a revision with safetensors weights, or run the command that the message gives and "
        "use the folder that it leaves.",
    ),
    FailureCode.UNSUPPORTED_ARCHITECTURE: FailureRule(
        False, "Choose a model whose architecture has a head for this task."
    ),
    FailureCode.SLOW_TOKENIZER: FailureRule(
        False,
        "Set `model.tokenizer_name` to a repository that holds a fast tokenizer (tokenizer.json).",
    ),
    FailureCode.SEQUENCE_TOO_LONG: FailureRule(
        False, "Lower the task's `max_seq_length` to what the model's position table holds."
    ),
    FailureCode.NO_PAD_TOKEN: FailureRule(
        False, "Set `model.tokenizer_name` to a tokenizer that has a pad token."
    ),
    FailureCode.INVALID_OPTION: FailureRule(
        False, "Change the option that the message names and submit a new job."
    ),
    FailureCode.OUT_OF_MEMORY: FailureRule(
        False,
        "Halve `per_device_train_batch_size` and double `gradient_accumulation_steps`, "
        "shorten the sequences, or use bf16.",
    ),
    FailureCode.NON_FINITE_LOSS: FailureRule(
        False, "Lower `learning_rate`, add `warmup_steps`, or use bf16 or fp32 instead of fp16."
    ),
    FailureCode.CHECKPOINT_UNREADABLE: FailureRule(
        False, "Submit the job again; keep more checkpoints with `save_total_limit`."
    ),
    FailureCode.DISK_FULL: FailureRule(
        False, "Free space under FINETUNE_HOME or lower `save_total_limit`, then submit again."
    ),
    FailureCode.WORKER_LOST: FailureRule(
        True,
        "Nothing: the job goes on from its newest checkpoint on the next free worker.",
        is_crash=True,
    ),
    FailureCode.HUNG: FailureRule(
        True,
        "Nothing yet: the job goes on from its newest checkpoint. If it hangs again, try "
        "`training.dataloader_num_workers: 0`, or ask the operator for a longer "
        "FINETUNE_HUNG_SECONDS.",
        is_crash=True,
    ),
    FailureCode.CRASH_LIMIT: FailureRule(
        False,
        "Read the job's log: several attempts in a row ended without any progress. The message "
        "has the last one's reason.",
    ),
    FailureCode.DEVICE_ERROR: FailureRule(
        True, "Nothing yet: the attempt is repeated. If it comes back, check the device's health."
    ),
    FailureCode.SHARED_MEMORY_FULL: FailureRule(
        False,
        "Give the worker's container more shared memory (`shm_size` in docker-compose.yml, "
        "`--shm-size` of docker run; outside containers: the size of /dev/shm), then retry the "
        "job.",
    ),
    FailureCode.GPU_USED_TWICE: FailureRule(
        False,
        "Name each GPU once in the worker's CUDA_VISIBLE_DEVICES, and no two slices of one GPU "
        "(MIG) for one job; then retry the job. `finetune doctor` shows what the worker sees.",
    ),
    FailureCode.TIMEOUT: FailureRule(
        False, "Raise the limit that the message names, or have the job do less."
    ),
    FailureCode.CANCELLED: FailureRule(
        False, "Nothing: the job was cancelled on request.", JobState.CANCELLED
    ),
    FailureCode.HUB_UNAUTHORIZED: FailureRule(
        False, "Have the operator set FINETUNE_HUB_TOKEN to a valid token with write access."
    ),
    FailureCode.HUB_FORBIDDEN: FailureRule(
        False, "Choose a `hub.model_id` in a namespace that the operator's token may write to."
    ),
    FailureCode.HUB_CONFLICT: FailureRule(
        True, "Nothing yet: the push is repeated. If it comes back, choose another `hub.model_id`."
    ),
    FailureCode.HUB_RATE_LIMITED: FailureRule(
        True,
        "Nothing yet: the call is repeated later. If it comes back, submit fewer jobs at once.",
    ),
    FailureCode.HUB_UNAVAILABLE: FailureRule(
        True, "Nothing yet: the call is repeated later. Check the Hub's status page."
    ),
    FailureCode.HUB_REJECTED: FailureRule(
        False, "Mend what the Hub's answer names, for example `hub.model_id` or `hub.revision`."
    ),
    FailureCode.NETWORK: FailureRule(
        True, "Nothing yet: the call is repeated later. Check the worker's way to the network."
    ),
    FailureCode.INTERNAL: FailureRule(
        False, "Read the job's log and report it with the job id; the fault is ours."
    ),
}


class Failure(BaseModel):
    """Why a job or an attempt ended, in words for its user; never holds a traceback."""

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
