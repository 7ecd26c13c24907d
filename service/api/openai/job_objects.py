"""A job as OpenAI's API shows it, derived from its row: any job, however it was submitted."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from service.api.openai import hyperparameters, result_files
from service.api.openai.model_titles import ModelTitles
from service.api.openai.schemas.fine_tuning import FineTuningJob
from service.contract.failures import FailureCode
from service.contract.spec.tracking import TrackingSpec
from service.contract.states import JobState, Stage
from service.store.tables.jobs import JobRow

_STATUSES: Final[dict[JobState, str]] = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "running",
    # It may still end before it pauses.
    JobState.PAUSING: "running",
    JobState.PAUSED: "paused",
    # Nothing else can follow, and OpenAI's API says `cancelled` at once.
    JobState.CANCELLING: "cancelled",
    JobState.CANCELLED: "cancelled",
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
}
_METHODS: Final = {"chat": "supervised", "preference": "dpo"}
_PARAMS: Final[dict[FailureCode, str]] = {
    FailureCode.MISSING_COLUMN: "training_file",
    FailureCode.UNREADABLE_ROW: "training_file",
    FailureCode.LABEL_MISMATCH: "training_file",
    FailureCode.EMPTY_DATASET: "training_file",
    FailureCode.DATASET_NOT_FOUND: "training_file",
    FailureCode.DATASET_ACCESS_DENIED: "training_file",
    FailureCode.UNSUPPORTED_FORMAT: "training_file",
    FailureCode.DATA_CHANGED: "training_file",
    FailureCode.DATA_TOO_LARGE: "training_file",
    FailureCode.MODEL_NOT_FOUND: "model",
    FailureCode.MODEL_ACCESS_DENIED: "model",
    FailureCode.UNSAFE_WEIGHTS: "model",
    FailureCode.INVALID_MODEL: "model",
    FailureCode.MODEL_TOO_LARGE: "model",
    FailureCode.UNSUPPORTED_ARCHITECTURE: "model",
    FailureCode.SLOW_TOKENIZER: "model",
    FailureCode.NO_PAD_TOKEN: "model",
}


def unix(moment: datetime) -> int:
    """Whole seconds, rounded down."""
    return int(moment.timestamp())


def has_model(job: JobRow) -> bool:
    """Whether the finished model of the job, which has succeeded, is still on the server."""
    output = job.results.get(Stage.TRAIN, {}).get("output_dir")
    return job.state == JobState.SUCCEEDED and bool(output) and job.workspace_pruned_at is None


def status_of(job: JobRow) -> str:
    state = JobState(job.state)
    if job.stage == Stage.PREPARE and state in (JobState.QUEUED, JobState.RUNNING):
        return "validating_files"
    return _STATUSES[state]


def fine_tuning_job(job: JobRow, titles: ModelTitles) -> FineTuningJob:
    spec, ended = job.spec, job.ended_at
    named = hyperparameters.reported(spec)
    training_file, validation_file = _files(spec["dataset"])
    return FineTuningJob.model_validate(
        {
            "id": job.id,
            "created_at": unix(job.created_at),
            "error": _error(job, validation_file),
            "fine_tuned_model": titles.made_by(job.id) if has_model(job) else None,
            "finished_at": None if ended is None else unix(ended),
            "hyperparameters": named,
            "model": titles.begun_with(job.id),
            "organization_id": job.project_id,
            "result_files": result_files.ids_of(job),
            "seed": spec["training"]["seed"],
            "status": status_of(job),
            "trained_tokens": _trained_tokens(job),
            "training_file": training_file,
            "validation_file": validation_file,
            "estimated_finish": _estimated_finish(job),
            "integrations": list(_integrations(spec.get("tracking") or {})),
            "metadata": job.metadata_ or None,
            "method": _method(spec, named),
        }
    )


def _files(dataset: Mapping[str, Any]) -> tuple[str, str | None]:
    """What stands for the training file and the validation file: the first of several."""
    if dataset["source"] == "hub":
        split = _first(dataset.get("validation"))
        return dataset["name"], split and f"{dataset['name']}:{split}"
    # Jobs that only evaluate or predict may have no training rows.
    return _first(dataset.get("train")) or "", _first(dataset.get("validation"))


def _first(found: Any) -> str | None:
    while isinstance(found, dict | list) and found:
        found = next(iter(found.values() if isinstance(found, dict) else found))
    return found if isinstance(found, str) else None


def _error(job: JobRow, validation_file: str | None) -> dict[str, Any] | None:
    failure = job.failure
    if failure is None or job.state != JobState.FAILED:
        return None
    parts = [str(part).rstrip(".") for part in (failure["message"], failure.get("action")) if part]
    return {
        "code": failure["code"],
        "message": f"{'. '.join(parts)}.",
        "param": _param(failure, validation_file),
    }


def _param(failure: Mapping[str, Any], validation_file: str | None) -> str | None:
    param = _PARAMS.get(failure["code"])
    about_validation = validation_file is not None and (
        validation_file in failure["message"] or "validation split" in failure["message"]
    )
    return "validation_file" if param == "training_file" and about_validation else param


def _trained_tokens(job: JobRow) -> int | None:
    """Tokens that were read in training, once it has ended; null where they were not counted."""
    seen = job.results.get(Stage.TRAIN, {}).get("metrics", {}).get("num_input_tokens_seen")
    return int(seen) if isinstance(seen, int | float) else None


def _estimated_finish(job: JobRow) -> int | None:
    left = (job.progress or {}).get("eta_seconds")
    if job.state != JobState.RUNNING or not isinstance(left, int | float):
        return None
    return unix(job.updated_at + timedelta(seconds=min(left, 10 * 366 * 86400)))


def _integrations(tracking: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    project = tracking.get("experiment_name")
    default = TrackingSpec.model_fields["experiment_name"].default
    if project not in (None, default) or tracking.get("run_name") is not None:
        names = {"project": project or default, "name": tracking.get("run_name")}
        yield {"type": "mlflow", "mlflow": names}


def _method(spec: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any] | None:
    kind = _METHODS.get(spec["task"]["type"])
    if kind is None:
        return None
    if kind == "dpo":
        named = {**named, "beta": spec["task"].get("beta")}
    other = "supervised" if kind == "dpo" else "dpo"
    return {"type": kind, kind: {"hyperparameters": named}, other: None}
