"""What the user of a failed preview, prediction or check of a file should do: no job can be retried
or cloned there."""

import re
from collections.abc import Mapping
from typing import Final

from service.contract.failures import RULES, Failure, FailureCode

_AGAIN: Final = re.compile(r"`finetune retry JOB`|submit again")
_REPORT: Final = "If it repeats itself, the operator finds the reason in the worker's log."
_IN_PREVIEWS: Final[dict[FailureCode, str]] = {
    FailureCode.INVALID_OPTION: "Change the option that the message names, then try again.",
    FailureCode.OUT_OF_MEMORY: "Ask for fewer rows, or try again when the machine has more free "
    "memory.",
    FailureCode.INSUFFICIENT_RESOURCES: "Ask for fewer rows, or try again when the machine has "
    "more free memory.",
    FailureCode.CHECKPOINT_UNREADABLE: "Name another checkpoint of that job, or leave it out.",
    FailureCode.DISK_FULL: "Have the operator free space under FINETUNE_HOME, then try again.",
    FailureCode.DISK_LIMIT: "Ask for fewer rows; or have the operator raise the setting that the "
    "message names (FINETUNE_STAGE_DISK_BYTES or FINETUNE_STAGE_FILE_BYTES), and restart.",
    FailureCode.PROCESS_LIMIT: "Have the operator raise FINETUNE_STAGE_PROCESSES and restart, then "
    "try again.",
    FailureCode.STAGE_UNTRUSTWORTHY: "Tell the operator: the program that made the preview did "
    "what it may not do.",
}
"""Where `action` of the rule does not fit."""
_OPERATORS_TOKEN: Final = (
    "have the operator set FINETUNE_HUB_TOKEN to a token of an account that has access, and "
    "restart; then ask again."
)
_ROWS: Final = "Correct the rows, and ask again."
_IN_PREDICTIONS: Final[dict[FailureCode, str]] = {
    FailureCode.MISSING_COLUMN: _ROWS,
    FailureCode.UNREADABLE_ROW: _ROWS,
    FailureCode.LABEL_MISMATCH: _ROWS,
    FailureCode.EMPTY_DATASET: _ROWS,
    FailureCode.DATA_TOO_LARGE: "Ask for fewer or shorter rows.",
    FailureCode.MODEL_NOT_FOUND: "Check the model's name: GET /v1/models lists the project's own, "
    "and a base model has its Hub id or its path.",
    FailureCode.MODEL_ACCESS_DENIED: "Accept the licence on the model's page, and "
    f"{_OPERATORS_TOKEN} The files of a local folder must be readable by the worker's user.",
    FailureCode.UNSAFE_WEIGHTS: "Ask a model with safetensors weights; or run the command in the "
    "message, and ask the folder that it writes.",
    FailureCode.INVALID_MODEL: "Ask another model, or correct the file that the message names.",
    FailureCode.MODEL_TOO_LARGE: "Ask a smaller model, or have the operator start a worker with "
    "more memory or disk.",
    FailureCode.UNSUPPORTED_ARCHITECTURE: "Ask a model that writes text, such as one for chat.",
    FailureCode.SLOW_TOKENIZER: "Ask a model with a fast tokenizer (tokenizer.json).",
    FailureCode.SEQUENCE_TOO_LONG: "Shorten the input, and ask again.",
    FailureCode.NO_PAD_TOKEN: "Ask a model whose tokenizer has a pad token.",
    FailureCode.INVALID_OPTION: "Correct what the message names, and ask again; or ask another "
    "model.",
    FailureCode.OUT_OF_MEMORY: "Ask for fewer tokens, choices or rows, or ask a smaller model; or "
    "ask again when the machine has more free memory.",
    FailureCode.INSUFFICIENT_RESOURCES: "Ask again when the machine has enough of what the message "
    "names, or ask a smaller model.",
    FailureCode.DISK_FULL: "Have the operator free space under FINETUNE_HOME, then ask again.",
    FailureCode.STAGE_UNTRUSTWORTHY: "Tell the operator: the process with the model did what it "
    "may not do.",
    FailureCode.HUB_UNAUTHORIZED: f"Ask one of the project's own models, or {_OPERATORS_TOKEN}",
    FailureCode.HUB_FORBIDDEN: f"Ask one of the project's own models, or {_OPERATORS_TOKEN}",
    FailureCode.HUB_RATE_LIMITED: "Wait some minutes, then ask again.",
    FailureCode.HUB_UNAVAILABLE: "Ask again when the Hub works (see its status page), or ask one "
    "of the project's own models (GET /v1/models).",
    FailureCode.NETWORK: "Ask one of the project's own models (GET /v1/models), a folder under "
    "FINETUNE_MODEL_ROOTS, or again when the worker reaches the Hub.",
}


def of_preview(failure: Failure) -> Failure:
    """The spec is only tried, as in a check of a file: there is no job yet."""
    return _without_job(failure, _IN_PREVIEWS, f"Try again. {_REPORT}")


def of_prediction(failure: Failure) -> Failure:
    """A model is asked: there is no spec that could be changed either."""
    return _without_job(failure, _IN_PREDICTIONS, f"Ask again. {_REPORT}")


def _without_job(failure: Failure, table: Mapping[FailureCode, str], otherwise: str) -> Failure:
    """A more exact action than the rule's is kept, unless it is about a job."""
    action = _AGAIN.sub("try again", failure.action)
    is_of_rule = failure.action == RULES[failure.code].action
    if (is_of_rule and failure.code in table) or _is_about_job(action):
        action = table.get(failure.code, otherwise)
    return failure.model_copy(update={"action": action})


def _is_about_job(action: str) -> bool:
    return "JOB" in action or "a clone" in action or action.startswith(("Continue", "Submit"))
