"""Checks of the model in a job that does not train: it needs all weights, and has the labels."""

from pathlib import Path
from typing import Any

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.stages import StageRequest
from worker.tasks.base import Task

_SHOWN = 8  # names in a message


def with_labels_of(request: StageRequest, task: Task, config: Any) -> StageRequest:
    """The request with the model's labels, if the job does not train: its data may lack some or all
    of them. StageError(label_mismatch, invalid_option)."""
    if request.spec.trains:
        return request
    parameters = task.with_labels_of(request.spec.task, config)
    spec = request.spec.model_copy(update={"task": parameters})
    return request.model_copy(update={"spec": spec})


def check_weights(spec: JobSpec, task: Task, folder: Path) -> None:
    """StageError(invalid_option) if weights are missing and the job does not train.

    Reads only names and sizes from the files' headers, no weights.
    """
    if spec.trains:
        return
    _loaded, info = task.auto_model().from_pretrained(
        folder,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        device_map="meta",
    )
    unlike = {name for name, *_shapes in info["mismatched_keys"]}
    require_all(spec, sorted(unlike.union(info["missing_keys"])))


def require_all(spec: JobSpec, missing: list[str]) -> None:
    """StageError(invalid_option) if weights are `missing` and the job does not train."""
    if spec.trains or not missing:
        return
    shown = ", ".join(missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    raise StageError(
        FailureCode.INVALID_OPTION,
        f"The model {spec.model.title!r} was not trained for {spec.task.variant()}: it lacks "
        f"{shown}{more}. These weights would be random, and so would the predictions. Give a model "
        "that was trained for the task, or train this one with `mode: train`",
        option="model.name_or_path",
        weights=missing[:100],
    )
