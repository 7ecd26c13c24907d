"""Examines a converted spec as the service will, and writes its values as their types."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from service.api.faults.collect import collect
from service.api.schemas.problems import Fault
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec

_UPLOADED: Final = "file-0"
_SPLITS: Final = ("train", "validation", "test")
# Placeholders for the sections that dumped TrainingArguments do not have.
_REST: Final[dict[str, Any]] = {
    "task": "text-classification",
    "model": {"name_or_path": "org/model"},
    "dataset": {"source": "hub", "name": "org/data", "validation": "validation"},
}
# Values that differ from the default and mean the same.
_NOTHING: Final[tuple[tuple[str, Any], ...]] = (
    ("lr_scheduler_kwargs", {}),
    ("activation_checkpointing", False),
)


def check(spec: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """The spec with numeric strings as numbers, and everything that is wrong with it."""
    findings = collect({**_REST, **_uploaded(spec)})
    if findings.faults or findings.spec is None:
        return dict(spec), findings.faults
    return _with_types(spec, findings.spec), []


def _uploaded(spec: Mapping[str, Any]) -> dict[str, Any]:
    """With an id of an upload in place of each local file."""
    dataset = spec.get("dataset", {})
    if dataset.get("source") != "upload":
        return dict(spec)
    files = {split: _UPLOADED for split in _SPLITS if split in dataset}
    return {**spec, "dataset": {**dataset, **files}}


def _with_types(spec: Mapping[str, Any], job: JobSpec) -> dict[str, Any]:
    typed = {name: _typed(value, getattr(job, name)) for name, value in spec.items()}
    if isinstance(spec.get("dataset"), dict):
        files = {name: value for name, value in spec["dataset"].items() if name in _SPLITS}
        typed["dataset"] = {**typed["dataset"], **files}
    if "training" in spec:
        typed["training"] = _training(job.training)
    if isinstance(typed.get("task"), dict):
        typed["task"] = _without_defaults(typed["task"], job.task)
    return {name: value for name, value in typed.items() if value != {}}


def _typed(given: Any, parsed: Any) -> Any:
    if not isinstance(given, dict):
        return parsed if not isinstance(parsed, BaseModel) else given
    if not isinstance(parsed, BaseModel):
        return given
    return {name: _typed(value, getattr(parsed, name, value)) for name, value in given.items()}


def _without_defaults(task: dict[str, Any], parsed: BaseModel) -> Any:
    """The task's name alone where that means the same."""
    fields = type(parsed).model_fields
    left = {
        name: value
        for name, value in task.items()
        if name == "type" or value != fields[name].get_default(call_default_factory=True)
    }
    return left if len(left) > 1 else left["type"]


def _training(parsed: TrainingSpec) -> dict[str, Any]:
    """What is not at its default, each by one name."""
    found = parsed.model_dump(mode="json", exclude_defaults=True)
    if found.get("precision") in ("bf16", "fp16"):
        found.pop("bf16", None)
        found.pop("fp16", None)
    if found.get("on_oom") == "halve_batch":
        found.pop("on_oom")
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in found.items()
        if (name, value) not in _NOTHING
    }
