"""What a job that does not train needs of its model: all of its weights, and the labels that it
knows."""

from pathlib import Path
from typing import Any

from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from service.contract.stages import StageRequest
from worker.tasks.base import HasLabels, Task

_SHOWN = 8  # names in a message


def with_labels_of(request: StageRequest, task: Task, config: Any) -> StageRequest:
    """The request of a job that does not train, whose labels are those of the model: its data
    need not have them all, or any. StageError(label_mismatch, invalid_option)."""
    if request.spec.trains or not isinstance(task, HasLabels):
        return request
    parameters = task.with_labels_of(request.spec.task, config)
    spec = request.spec.model_copy(update={"task": parameters})
    return request.model_copy(update={"spec": spec})


def check_weights(spec: JobSpec, task: Task, folder: Path) -> None:
    """StageError(invalid_option) where weights are missing and the job does not train.

    Looks at the names and sizes that the files' headers state; no weight is read.
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
    """StageError(invalid_option) where a job that does not train has weights `missing`."""
    if spec.trains or not missing:
        return
    shown = ", ".join(missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    raise StageError(
        FailureCode.INVALID_OPTION,
        f"The model {spec.model.title!r} was not trained for {spec.task.variant()}: it lacks "
        f"{shown}{more}, which would be random, and so would be its answers. Give a model that was "
        "trained for the task, or train this one with `mode: train`",
        option="model.name_or_path",
        weights=missing[:100],
    )
