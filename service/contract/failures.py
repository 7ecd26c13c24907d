"""Every way an attempt can end badly: what state follows, whether a retry helps, what to do."""

import math
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
    DATA_TOO_LARGE = "data_too_large"
    # The user's model.
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_ACCESS_DENIED = "model_access_denied"
    UNSAFE_WEIGHTS = "unsafe_weights"
    INVALID_MODEL = "invalid_model"
    MODEL_TOO_LARGE = "model_too_large"
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
    DISK_LIMIT = "disk_limit"
    PROCESS_LIMIT = "process_limit"
    WORKER_LOST = "worker_lost"
    HUNG = "hung"
    CRASH_LIMIT = "crash_limit"
    DEVICE_ERROR = "device_error"
    SHARED_MEMORY_FULL = "shared_memory_full"
    GPU_USED_TWICE = "gpu_used_twice"
    INSUFFICIENT_RESOURCES = "insufficient_resources"
    SANDBOX_INCOMPLETE = "sandbox_incomplete"
    STAGE_UNTRUSTWORTHY = "stage_untrustworthy"
    FILES_MISSING = "files_missing"
    # Limits and requests of the user.
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    TRIAL_PRUNED = "trial_pruned"
    # External services.
    HUB_UNAUTHORIZED = "hub_unauthorized"
    HUB_FORBIDDEN = "hub_forbidden"
    HUB_CONFLICT = "hub_conflict"
    HUB_RATE_LIMITED = "hub_rate_limited"
    HUB_UNAVAILABLE = "hub_unavailable"
    HUB_REJECTED = "hub_rejected"
    NETWORK = "network"
    # Limits of the project.
    QUOTA_EXCEEDED = "quota_exceeded"
    SECRET_UNAVAILABLE = "secret_unavailable"
    # A bug in the service.
    INTERNAL = "internal"


@dataclass(frozen=True, kw_only=True)
class FailureRule:
    """What follows from a failure code.

    `state` is the job's state when the failure is final, `retryable` means that the same attempt
    can succeed later (infrastructure). `action` tells the user what to do when the failure is
    final, `while_retrying` while retries are left; JOB in a command becomes the job's id.
    """

    action: str
    retryable: bool = False
    while_retrying: str = ""
    state: JobState = JobState.FAILED
    is_crash: bool = False
    """It does not count against `max_retries` as long as the job makes progress in between."""
    is_lack: bool = False
    """The host lacks it now, whichever job uses it: this job waits until there is enough, and its
    retries do not count."""
    is_prepared_again: bool = False
    """Nothing is wrong with the job: it begins again with `prepare`."""


_SET_TOKEN: Final = (
    "set the secret that it names in `secrets.hub_token` (`finetune secrets set`) or, if it names "
    "none, FINETUNE_HUB_TOKEN, and restart; then `finetune retry JOB`."
)
RULES: Final[dict[FailureCode, FailureRule]] = {
    FailureCode.MISSING_COLUMN: FailureRule(
        action="Map the columns with `dataset.columns`, or rename them in the data, then "
        "submit again.",
    ),
    FailureCode.UNREADABLE_ROW: FailureRule(
        action="Fix or remove the named rows, then submit again; or leave such rows out with "
        "`dataset.on_bad_row: skip`.",
    ),
    FailureCode.LABEL_MISMATCH: FailureRule(
        action="Correct the labels that the message names, or list all labels in "
        "`task.label_names`, then submit again; or leave such rows out with "
        "`dataset.on_bad_row: skip`.",
    ),
    FailureCode.EMPTY_DATASET: FailureRule(
        action="Check the slices, filters and format of the data: each split needs at least "
        "one usable row. Then submit again.",
    ),
    FailureCode.DATASET_NOT_FOUND: FailureRule(
        action="Check the name, config, revision and splits in `dataset`, or the file id or "
        "path, then submit again.",
    ),
    FailureCode.DATASET_ACCESS_DENIED: FailureRule(
        action="Request access on the data set's page and give the job a token of that account: "
        + _SET_TOKEN,
    ),
    FailureCode.UNSUPPORTED_FORMAT: FailureRule(
        action="Set `dataset.format` to the format that the file really has, or convert the "
        "file, then submit again.",
    ),
    FailureCode.DATA_CHANGED: FailureRule(
        action="Clone the job (`finetune clone JOB`): a new job can use the changed data, but "
        "this job's checkpoints cannot.",
    ),
    FailureCode.DATA_TOO_LARGE: FailureRule(
        action="Split the data, leave columns out or use fewer rows (such as with "
        "`dataset.max_train_samples`), then submit again; or ask the operator to raise the "
        "setting that the message names.",
    ),
    FailureCode.MODEL_NOT_FOUND: FailureRule(
        action="Check `model.name_or_path` and `model.revision`, or `model.job`, then submit "
        "again.",
    ),
    FailureCode.MODEL_ACCESS_DENIED: FailureRule(
        action="Accept the licence on the model's page and give the job a token of that account: "
        f"{_SET_TOKEN} The files of a local folder must be readable by the worker's user.",
    ),
    FailureCode.UNSAFE_WEIGHTS: FailureRule(
        action="Choose a revision with safetensors weights, or run the command in the message "
        "and use the folder that it writes.",
    ),
    FailureCode.INVALID_MODEL: FailureRule(
        action="Correct the file that the message names, or download the model again, then submit "
        "again. A usable folder is what `save_pretrained` of a model and of its tokenizer writes.",
    ),
    FailureCode.MODEL_TOO_LARGE: FailureRule(
        action="Choose a smaller model, or a worker with more memory or disk. LoRA (`peft`) needs "
        "no gradients of the base model, and `peft.quantization` a quarter of its memory.",
    ),
    FailureCode.UNSUPPORTED_ARCHITECTURE: FailureRule(
        action="Choose a model whose architecture has a head for this task."
    ),
    FailureCode.SLOW_TOKENIZER: FailureRule(
        action="Set `model.tokenizer_name` to a repository that holds a fast tokenizer "
        "(tokenizer.json).",
    ),
    FailureCode.SEQUENCE_TOO_LONG: FailureRule(
        action="Lower the task's `max_seq_length` to the number of positions that the model "
        "has, then submit again.",
    ),
    FailureCode.NO_PAD_TOKEN: FailureRule(
        action="Set `model.tokenizer_name` to a tokenizer that has a pad token."
    ),
    FailureCode.INVALID_OPTION: FailureRule(
        action="Change the option that the message names: `finetune clone JOB --set OPTION=VALUE`.",
    ),
    FailureCode.OUT_OF_MEMORY: FailureRule(
        action="Halve `per_device_train_batch_size` and double `gradient_accumulation_steps` "
        "in a clone of the job (`finetune clone JOB --set …`), shorten the sequences, "
        "or use bf16.",
    ),
    FailureCode.NON_FINITE_LOSS: FailureRule(
        action="Lower `learning_rate` in a clone of the job (`finetune clone JOB --set …`), "
        "add `warmup_steps`, or use bf16 or fp32 instead of fp16.",
    ),
    FailureCode.CHECKPOINT_UNREADABLE: FailureRule(
        action="Submit the job again; keep more checkpoints with `save_total_limit`.",
    ),
    FailureCode.DISK_FULL: FailureRule(
        action="Free space under FINETUNE_HOME, then `finetune retry JOB`. A lower "
        "`save_total_limit` keeps fewer checkpoints.",
        while_retrying="The job continues by itself once there is space under FINETUNE_HOME: "
        "delete jobs or files. A lower `save_total_limit` keeps fewer checkpoints.",
        is_lack=True,
    ),
    FailureCode.DISK_LIMIT: FailureRule(
        action="Write less: a lower `save_total_limit`, fewer predictions or rows. Or raise the "
        "setting that the message names (FINETUNE_STAGE_DISK_BYTES or FINETUNE_STAGE_FILE_BYTES), "
        "restart, then `finetune retry JOB`.",
    ),
    FailureCode.PROCESS_LIMIT: FailureRule(
        action="Lower `training.dataloader_num_workers` in a clone (`finetune clone JOB --set …`). "
        "Or raise FINETUNE_STAGE_PROCESSES, restart, then `finetune retry JOB`.",
    ),
    FailureCode.WORKER_LOST: FailureRule(
        retryable=True,
        action="Find out why the worker ended (its log, `finetune logs JOB --raw`, the host's "
        "memory), then `finetune retry JOB`.",
        while_retrying="No action needed: the job continues from its latest checkpoint on the next "
        "free worker.",
        is_crash=True,
    ),
    FailureCode.HUNG: FailureRule(
        retryable=True,
        action="Set `training.dataloader_num_workers: 0` in a clone, or raise "
        "FINETUNE_HUNG_SECONDS and restart, then `finetune retry JOB`. `finetune logs "
        "JOB --raw` shows where it hung.",
        while_retrying="The job continues from its latest checkpoint. If it hangs again, set "
        "`training.dataloader_num_workers: 0` in a clone, or raise "
        "FINETUNE_HUNG_SECONDS.",
        is_crash=True,
    ),
    FailureCode.CRASH_LIMIT: FailureRule(
        action="Find the reason in `finetune logs JOB --raw`, then `finetune retry JOB`.",
    ),
    FailureCode.DEVICE_ERROR: FailureRule(
        retryable=True,
        action="Check the device with `finetune doctor` and in the driver's log, then "
        "`finetune retry JOB`.",
        while_retrying="If it persists, check the device with `finetune doctor`.",
    ),
    FailureCode.SHARED_MEMORY_FULL: FailureRule(
        action="Give the worker's container more shared memory (`shm_size` in "
        "docker-compose.yml, `--shm-size` of docker run; outside containers: the size "
        "of /dev/shm), or more memory to the stage: the segment may take a quarter of it "
        "(FINETUNE_STAGE_MEMORY_BYTES). Then `finetune retry JOB`.",
    ),
    FailureCode.GPU_USED_TWICE: FailureRule(
        action="Name each GPU once in the worker's CUDA_VISIBLE_DEVICES, and no two slices of "
        "one GPU (MIG) for one job; then `finetune retry JOB`. `finetune doctor` shows "
        "what the worker sees.",
    ),
    FailureCode.INSUFFICIENT_RESOURCES: FailureRule(
        action="Give the worker's machine more of what the message names, or end what else uses "
        "it; then `finetune retry JOB`.",
        while_retrying="The job continues by itself once the machine has enough: end what else "
        "uses it, or wait.",
        is_lack=True,
    ),
    FailureCode.SANDBOX_INCOMPLETE: FailureRule(
        action="The operator of this worker must act: run `finetune doctor` on its machine, see "
        "docs/sandbox.md, or set FINETUNE_SANDBOX=auto. Then `finetune retry JOB`.",
    ),
    FailureCode.STAGE_UNTRUSTWORTHY: FailureRule(
        action="Show the job's log to the operator: a part of the job's program did what it may "
        "not do. Do not use this job's files.",
    ),
    FailureCode.FILES_MISSING: FailureRule(
        action="Make sure that all workers use the same FINETUNE_HOME and that nothing else "
        "removes files below it, then `finetune retry JOB`.",
        while_retrying="No action needed: `prepare` makes them again.",
        is_prepared_again=True,
    ),
    FailureCode.TIMEOUT: FailureRule(
        action="Continue with `finetune retry JOB`, which counts the time from zero; or raise "
        "the limit that the message names in a clone.",
    ),
    FailureCode.CANCELLED: FailureRule(
        action="Continue it with `finetune retry JOB`.",
        state=JobState.CANCELLED,
    ),
    FailureCode.TRIAL_PRUNED: FailureRule(
        action="No action needed: its search continues with better trials. `finetune retry JOB` "
        "trains it to the end all the same, outside of the search.",
        state=JobState.CANCELLED,
    ),
    FailureCode.HUB_UNAUTHORIZED: FailureRule(
        action=f"Give the job a valid token with write access: {_SET_TOKEN}",
    ),
    FailureCode.HUB_FORBIDDEN: FailureRule(
        action="Choose a `hub.model_id` in a namespace that the token may write to; or give the "
        f"job a token that may: {_SET_TOKEN}",
    ),
    FailureCode.HUB_CONFLICT: FailureRule(
        retryable=True,
        action="Let nothing else push to the repository, then `finetune retry JOB`; or choose "
        "another `hub.model_id`.",
        while_retrying="If it persists, choose another `hub.model_id`.",
    ),
    FailureCode.HUB_RATE_LIMITED: FailureRule(
        retryable=True,
        action="Wait some minutes, then `finetune retry JOB`. Submit fewer jobs at once; "
        "requests with a token (`secrets.hub_token`, FINETUNE_HUB_TOKEN) have higher limits.",
        while_retrying="If it persists, submit fewer jobs at once.",
    ),
    FailureCode.HUB_UNAVAILABLE: FailureRule(
        retryable=True,
        action="Wait until the Hub works again (see its status page), then `finetune retry JOB`.",
        while_retrying="If it persists, check the Hub's status page.",
    ),
    FailureCode.HUB_REJECTED: FailureRule(
        action="Fix what the Hub's response names, for example `hub.model_id` or "
        "`hub.revision`, then submit again.",
    ),
    FailureCode.NETWORK: FailureRule(
        retryable=True,
        action="Fix the network, then `finetune retry JOB`.",
        while_retrying="If it persists, check that the worker reaches the Hub.",
    ),
    FailureCode.QUOTA_EXCEEDED: FailureRule(
        action="Delete files or ended jobs of the project, or ask the operator for more, then "
        "`finetune retry JOB`.",
    ),
    FailureCode.SECRET_UNAVAILABLE: FailureRule(
        action="Set the secret again (`finetune secrets set NAME`), then `finetune retry JOB`.",
    ),
    FailureCode.INTERNAL: FailureRule(
        action="This is a bug in the service: read `finetune logs JOB --raw` and report it "
        "with the job id.",
    ),
}


class Failure(BaseModel):
    """Why a job or an attempt failed, in words for its user; never a traceback."""

    code: FailureCode
    message: str = Field(description="What happened, with the names and numbers of this job.")
    action: str = Field(description="What to do about it.")
    details: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_code(
        cls, code: FailureCode, message: str, *, action: str | None = None, **details: Any
    ) -> "Failure":
        """A failure with the action that its code prescribes, or a more exact one."""
        action = action or RULES[code].action
        return cls(code=code, message=message, action=action, details=details)

    @property
    def is_lack(self) -> bool:
        """Whether the host lacks something now that it can have later: `bytes_needed` of the
        details are not more than its `bytes_total`."""
        return RULES[self.code].is_lack and (
            self.bytes_of("bytes_needed") <= self.bytes_of("bytes_total", math.inf)
        )

    def bytes_of(self, name: str, otherwise: float = 0) -> float:
        """A number of the details, which a stage may have reported."""
        value = self.details.get(name)
        return value if isinstance(value, int) else otherwise


class StageError(Exception):
    """Raised inside a stage to end it with a failure code; its message is shown to the user."""

    def __init__(
        self, code: FailureCode, message: str, *, action: str | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.failure = Failure.from_code(code, message, action=action, **details)
