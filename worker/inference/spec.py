"""The spec of a job with `mode: predict` and the model, task and options of a finished job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from service.contract.spec.peft import PeftSpec
from service.contract.spec.spec import JobSpec

_KEPT: Final = (
    *("per_device_eval_batch_size", "seed", "precision", "full_determinism"),
    *("bf16_full_eval", "fp16_full_eval"),
)


def of_prediction(
    given: Mapping[str, Any], model_dir: Path, rows_file: Path, *, use_gpu: bool
) -> JobSpec:
    """`given`: of the job. Without the adapter: it would be a new one. The job's options were
    accepted when it was made, perhaps by an older release."""
    body = {
        "mode": "predict",
        "task": {name: value for name, value in given["task"].items() if _is_kept(name)},
        "model": {
            "name_or_path": str(model_dir),
            "dtype": given["model"].get("dtype", "float32"),
        },
        "dataset": {"source": "path", "format": "jsonl", "test": [str(rows_file)]},
        "training": _training(given.get("training", {}), use_gpu=use_gpu),
        "resources": {"gpus": 1 if use_gpu else 0},
    }
    return JobSpec.accepted(body)


def adapter(spec: Mapping[str, Any]) -> Any:
    """`peft` of the job, without the quantization of its base model, which is a saving of memory
    in training."""
    one_of: Any = Annotated[PeftSpec, Field(discriminator="method")]
    given = {name: value for name, value in spec["peft"].items() if name != "quantization"}
    return TypeAdapter(one_of).validate_python(given)


def columns(spec: Mapping[str, Any]) -> dict[str, str]:
    """The task's column → the one in the job's training data."""
    named = {
        name.removesuffix("_column"): value
        for name, value in spec["task"].items()
        if not _is_kept(name) and value is not None
    }
    return {**spec.get("dataset", {}).get("columns", {}), **named}


def _is_kept(task_parameter: str) -> bool:
    return not task_parameter.endswith("_column")


def _training(given: Mapping[str, Any], *, use_gpu: bool) -> dict[str, Any]:
    kept = {name: given[name] for name in _KEPT if given.get(name) is not None}
    if not use_gpu:
        kept.pop("fp16_full_eval", None)
        if kept.get("precision") == "fp16":
            kept["precision"] = "fp32"
    return kept
