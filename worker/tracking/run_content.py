"""What a job's run contains: points, params, tags, data and the description, from rows in SQL."""

import functools
import getpass
import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from service import __version__
from service.contract.spec import splits, tracking_names
from service.contract.spec.dataset import UploadDataset
from service.contract.spec.spec import JobSpec
from service.contract.stage import home_paths
from service.contract.states import Stage
from service.store.tables.jobs import MetricRow
from service.store.tracking.jobs import TrackedJob
from worker.tracking import base_model_config, dataset_inputs, run_description
from worker.tracking.model_registry import FinishedModel
from worker.tracking.run_description import Subject
from worker.tracking.trackers import JOB_ID_TAG, PARENT_TAG, SEARCH_ID_TAG, Description, Point

TRIAL_TAG: Final = "finetune.trial"
FIRST_CHART: Final = "train/loss"
"""The training loss a second time: MLflow puts metrics with a prefix above all others, which it
sorts by name."""
END_TAGS: Final = (
    "finetune.state",
    "finetune.failure_code",
    "finetune.failure_message",
    "finetune.hub_url",
    "finetune.hub_commit",
)


def points(row: MetricRow) -> Iterator[Point]:
    """A row's values under the names that Hugging Face's Trainer uses."""
    for name, value in row.values.items():
        # JSON has no NaN and no infinity: they are stored as text, which float() reads.
        yield Point(_metric_key(row.kind, name), float(value), row.step, row.at)
        if (row.kind, name) == ("train", "loss"):
            yield Point(FIRST_CHART, float(value), row.step, row.at)
    if row.kind == "train" and row.progress_epoch is not None and "epoch" not in row.values:
        yield Point("epoch", row.progress_epoch, row.step, row.at)


_PREFIX: Final = {"train": "", "eval": "eval_", "system": "system/"}


def _metric_key(kind: str, name: str) -> str:
    prefix = _PREFIX[kind]
    return accepted_key(name if name.startswith(prefix) else prefix + name)


def final_points(job: TrackedJob) -> Iterator[Point]:
    """The metrics of the finished model, which may be older than the last one evaluated."""
    trained = job.results.get(Stage.TRAIN)
    if trained is None or job.ended_at is None:
        return
    # Always the same time, because a job whose `publish` is retried ends twice.
    at = job.trained_at or job.ended_at
    best = {name: trained.get(name) for name in ("best_step", "best_metric")}
    for name, value in {**trained["metrics"], **best}.items():
        if value is not None:
            of_training = name.startswith(("train_", "total_"))
            # After a promotion the newest value must be the promoted model's, and to MLflow the
            # newest value is the one of the highest step.
            whole = of_training or trained.get("is_promoted")
            step = None if whole else trained.get("model_step")
            # The test split is evaluated once, so no other value has this name. MLflow sorts
            # charts by name: these single points come after `loss`.
            key = accepted_key(name if name.startswith("test_") else f"result_{name}")
            yield Point(key, float(value), step or trained["steps"], at)


def description(job: TrackedJob, file_names: Mapping[str, str], home: Path) -> Description:
    spec = JobSpec.accepted(job.spec)
    prepared = job.results.get(Stage.PREPARE) or {}
    resolved = ("model_revision", "dataset_revision", "data_fingerprint", "hub_model_id")
    found = {name: str(prepared[name]) for name in resolved if prepared.get(name)}
    trained = job.results.get(Stage.TRAIN) or {}
    # Separate from the spec's `precision`: MLflow cannot change the value of a param.
    computed = {"resolved_precision": trained["precision"]} if trained.get("precision") else {}
    folder = prepared.get("model_dir")
    shape = base_model_config.params(home_paths.placed(Path(folder), home)) if folder else {}
    text = json.dumps(spec.model_dump(mode="json"), indent=2, ensure_ascii=False)
    return Description(
        params=_varied_params(job.varied)
        | dict(_params(spec, file_names))
        | found
        | dict(shape)
        | computed
        | dict(_data_params(prepared)),
        tags=_tags(job, spec, dataset_inputs.label(spec, file_names)),
        texts={"spec.json": text + "\n"},
        datasets=tuple(dataset_inputs.inputs(spec, prepared, file_names)),
        note=run_description.write(job, spec, file_names),
        subject=Subject("Job", job.id),
    )


def finished_model(job: TrackedJob) -> FinishedModel:
    spec = JobSpec.accepted(job.spec)
    trained = job.results.get(Stage.TRAIN) or {}
    registered = spec.tracking.register_as
    return FinishedModel(
        job_id=job.id,
        name=re.sub(r"[^A-Za-z0-9 _-]+", "-", spec.name or job.id),
        task=spec.task.type,
        step=trained.get("model_step") or trained.get("steps", 0),
        register_as=registered and tracking_names.registered_model(job.project, registered),
        alias=spec.tracking.register_alias,
    )


def _data_params(prepared: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Values of the job's data report, such as `data.train.rows_used`."""
    report = prepared.get("data_report") or {}
    for split, found in report.get("splits", {}).items():
        for name in ("rows_read", "rows_used", "rows_skipped", "realigned", "truncated"):
            if name in found:
                yield f"data.{split}.{name}", str(found[name])


_NOT_PARAMS: Final = ("metadata", "tracking", "name")
"""Sections that become tags, or the run's name."""


def _params(spec: JobSpec, file_names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in type(spec).model_fields:
        if name not in _NOT_PARAMS:
            # Training options have no prefix: users search for their plain names.
            prefix = "" if name == "training" else name
            yield from flat(getattr(spec, name), prefix)
    if isinstance(spec.dataset, UploadDataset):  # names are clearer than ids, which spec.json has
        for field in (splits.TRAIN, splits.VALIDATION, splits.TEST):
            value = getattr(spec.dataset, field)
            if value:
                named = _named(value, file_names)
                yield f"dataset.{field}", json.dumps(named, ensure_ascii=False)


def _varied_params(varied: Mapping[str, Any]) -> dict[str, str]:
    """The fields that vary in a search. `_params` has most of them, but neither an unset one nor a
    whole section: with them MLflow can compare all trials."""
    return {
        path.removeprefix("training."): value if isinstance(value, str) else json.dumps(value)
        for path, value in varied.items()
    }


def _named(value: Any, file_names: Mapping[str, str]) -> Any:
    """Of one set, or of several named ones."""
    if isinstance(value, dict):
        return {name: _named(ids, file_names) for name, ids in value.items()}
    return run_description.file_names_of(value, file_names)


def flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Dotted names; lists and maps as JSON; unset values are left out."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from flat(getattr(value, name), f"{path}.{name}".lstrip("."))
    elif isinstance(value, list | dict):
        if value:
            yield path, json.dumps(value, ensure_ascii=False)
    elif value is not None:
        yield path, str(value)


def _tags(job: TrackedJob, spec: JobSpec, dataset: str) -> dict[str, str]:
    own = {
        JOB_ID_TAG: job.id,
        "finetune.task": spec.task.type,
        "finetune.model": spec.model.title,
        "finetune.dataset": dataset,
    }
    if spec.base_job is not None:
        own["finetune.base_job"] = spec.base_job
    of_search = {SEARCH_ID_TAG: job.search_id, TRIAL_TAG: job.trial, PARENT_TAG: job.parent_run_id}
    own |= {key: str(value) for key, value in of_search.items() if value is not None}
    return origin_tags(spec, job.id) | own


def origin_tags(spec: JobSpec, subject_id: str) -> dict[str, str]:
    """Where the run is from, and the tags that the user has chosen."""
    # MLflow shows these as "Created by" and "Source"; a user's tags may replace them.
    origin = {
        "mlflow.user": spec.metadata.get("user") or _service_user(),
        "mlflow.source.name": f"finetune {__version__}, {subject_id}",
        "mlflow.source.type": "LOCAL",
    }
    labels = {f"metadata.{key}": value for key, value in spec.metadata.items()}
    chosen = {accepted_key(key): value for key, value in spec.tracking.tags.items()}
    return origin | chosen | labels


@functools.cache
def _service_user() -> str:
    """The operating system's user that runs the service: jobs have no owners."""
    with suppress(KeyError, OSError):  # an id without a name, as in some containers
        return getpass.getuser()
    return str(os.getuid())


def end_tags(job: TrackedJob) -> dict[str, str]:
    published = job.results.get(Stage.PUBLISH) or {}
    failure = job.failure or {}
    values = (
        job.state,
        failure.get("code"),
        failure.get("message"),
        published.get("hub_url"),
        published.get("hub_commit"),
    )
    return {key: str(value) for key, value in zip(END_TAGS, values, strict=True) if value}


def accepted_key(name: str) -> str:
    """A name that MLflow accepts for a metric or a tag."""
    name = re.sub(r"[^\w.\- :/]", "_", name)
    return name if posixpath.normpath(name) == name else f"_{name.replace('/', '_')}"
