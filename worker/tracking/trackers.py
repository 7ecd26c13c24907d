"""Trackers show a job's metrics: MLflow, and one that stores nothing.

No SQL here, so that the `publish` stage can use it too. Importing this module does not import
mlflow; an `MlflowTracker` does so at its first call, and that does not import torch.
"""

import functools
import json
import math
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import SecretStr

from worker.tracking import model_registry, run_description
from worker.tracking.model_registry import FinishedModel
from worker.tracking.run_description import Subject

if TYPE_CHECKING:
    from mlflow import MlflowClient

JOB_ID_TAG: Final = "finetune.job_id"
SEARCH_ID_TAG: Final = "finetune.search_id"
"""Of a search's run, and of its trials'."""
SEARCH_RUN_TAG: Final = "finetune.is_search"
"""Only of a search's run."""
PARENT_TAG: Final = "mlflow.parentRunId"
"""By which MLflow shows runs under another one."""
MODEL_FOLDER: Final = "model/"
"""The prefix of the artifact names of the finished model."""
RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

# The limits of MLflow's API for one call and for one value.
_METRICS_PER_CALL, _PARAMS_PER_CALL, _TAGS_PER_CALL = 1000, 100, 100
_PARAM_CHARACTERS, _TAG_CHARACTERS, _DIGEST_CHARACTERS = 6000, 5000, 36
_NAME_CHARACTERS: Final = 500
_SOURCE_CHARACTERS: Final = 60_000


class TrackerUnreachableError(Exception):
    """The tracker does not respond at the moment: the same call can succeed later."""


class TrackerRejectedError(Exception):
    """The tracker refuses this call, now and later: for example, the run was deleted."""


@dataclass(frozen=True)
class RunRef:
    experiment_id: str
    run_id: str


@dataclass(frozen=True)
class NewRun:
    experiment: str
    name: str
    tags: Mapping[str, str]
    """By which it is found again; no other run has all of them."""
    start: datetime


@dataclass(frozen=True)
class Point:
    """One value of one metric."""

    key: str
    value: float
    step: int
    at: datetime


@dataclass(frozen=True)
class DatasetInput:
    name: str
    digest: str
    source_type: str
    source: Mapping[str, Any]
    """With the ids of uploads."""
    context: str = "training"
    """What it was used for: training, validation or test."""
    profile: Mapping[str, int] = field(default_factory=dict)
    """Numbers of rows."""


@dataclass(frozen=True)
class Description:
    """What a run shows about its job or search besides metrics. Params cannot change once they are
    sent."""

    params: Mapping[str, str]
    tags: Mapping[str, str]
    texts: Mapping[str, str]
    """Artifact path → content."""
    datasets: Sequence[DatasetInput]
    note: str
    """Shown at the top of the run's page."""
    subject: Subject
    """The target of the note's link."""


class Tracker:
    """Every call may be repeated, and may raise TrackerUnreachableError or
    TrackerRejectedError. This one stores nothing: it finds no run, so nothing is sent."""

    def find(self, experiment: str, tags: Mapping[str, str]) -> list[RunRef]:  # noqa: ARG002
        """The runs with all these tags, oldest first: several if two processes created one each."""
        return []

    def create(self, run: NewRun) -> None: ...

    def discard(self, run_id: str) -> None: ...

    def describe(self, run_id: str, description: Description) -> None: ...

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """A point that is sent twice is stored once."""

    def tag(self, run_id: str, key: str) -> str | None:  # noqa: ARG002
        return None

    def set_tag(self, run_id: str, key: str, value: str) -> None: ...

    def sizes(self, run_id: str) -> dict[str, int]:  # noqa: ARG002
        """Artifact path → size in bytes, of every artifact of the run."""
        return {}

    def log_file(self, run_id: str, file: Path, name: str) -> None:
        """Upload `file` as the artifact `name`, a path in the run."""

    def artifact_uri(self, run_id: str) -> str:
        raise TrackerRejectedError(f"no tracker is configured, so there is no run {run_id}")

    def remove_files(self, run_id: str) -> bool:  # noqa: ARG002
        """Remove the run's artifacts and its logged model. False if those of a registered version
        stay."""
        return True

    def add_model(self, run_id: str, model: FinishedModel) -> None:
        """Log the run's model as a model, and register it if the job requests that."""

    def end(self, run_id: str, status: RunStatus, at: datetime, tags: Mapping[str, str]) -> None:
        """Set the run's final status."""

    def reopen(self, run_id: str, tags: Sequence[str]) -> None:
        """Set the run to RUNNING, and remove these tags of an earlier end."""


class NullTracker(Tracker):
    """Where the operator has configured none."""


class MlflowTracker(Tracker):
    """A tracking server over HTTP, with one retry and a short timeout: metrics wait in SQL."""

    def __init__(
        self,
        uri: str,
        timeout_seconds: int = 5,
        *,
        public_url: str | None = None,
        token: SecretStr | None = None,
    ) -> None:
        """`public_url`: where users reach the service, for the link in a run's description.
        `token`: the server's, unless it is in MLFLOW_TRACKING_TOKEN already."""
        self._public_url = public_url
        self._token = token
        self._uri = uri
        self._timeout_seconds = timeout_seconds

    @functools.cached_property
    def _client(self) -> "MlflowClient":
        # mlflow reads these at import and at each call; the operator's values take precedence.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(self._timeout_seconds))
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        if self._token is not None:
            # Of this process as it is now: /proc/<pid>/environ shows only its beginning.
            os.environ["MLFLOW_TRACKING_TOKEN"] = self._token.get_secret_value()
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._uri)

    def find(self, experiment: str, tags: Mapping[str, str]) -> list[RunRef]:
        with _translated():
            known = self._client.get_experiment_by_name(experiment)
            if known is None:
                return []
            runs = self._client.search_runs(
                [known.experiment_id],
                " AND ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items()),
                order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            )
        return [RunRef(run.info.experiment_id, run.info.run_id) for run in runs]

    def create(self, run: NewRun) -> None:
        with _translated():
            self._client.create_run(
                self._experiment_id(run.experiment),
                start_time=_milliseconds(run.start),
                run_name=run.name,
                tags=dict(run.tags),
            )

    def _experiment_id(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                # Another process was faster.
                known = self._client.get_experiment_by_name(name)
                assert known is not None
        if known.lifecycle_stage == "deleted":
            self._client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)

    def discard(self, run_id: str) -> None:
        with _translated():
            self._client.delete_run(run_id)

    def describe(self, run_id: str, description: Description) -> None:
        from mlflow.entities import Param, RunTag

        with _translated():
            # MLflow rejects another value for a param, even if it means the same, like 1 and 1.0.
            run = self._client.get_run(run_id).data
            sent = run.params
            params = [
                Param(key, _cut(value, _PARAM_CHARACTERS))
                for key, value in description.params.items()
                if key not in sent
            ]
            tags = [
                RunTag(key, _cut(value, _TAG_CHARACTERS)) for key, value in description.tags.items()
            ]
            tags += [RunTag(*tag) for tag in self._note_tags(run.tags, description).items()]
            for start in range(0, len(params), _PARAMS_PER_CALL):
                self._client.log_batch(run_id, params=params[start : start + _PARAMS_PER_CALL])
            for start in range(0, len(tags), _TAGS_PER_CALL):
                self._client.log_batch(run_id, tags=tags[start : start + _TAGS_PER_CALL])
            self._log_datasets(run_id, description.datasets)
            for name, text in description.texts.items():
                self._client.log_text(run_id, text, name)

    def _note_tags(self, found: Mapping[str, str], description: Description) -> dict[str, str]:
        """The description, unless a user has edited it in MLflow."""
        before = found.get(run_description.TAG)
        written = found.get(run_description.DIGEST_TAG)
        if before is not None and run_description.digest(before) != written:
            return {}
        subject = description.subject
        note = run_description.with_link(description.note, subject, self._public_url)
        note = _cut(note, _TAG_CHARACTERS)
        digest = run_description.digest(note)
        return {run_description.DIGEST_TAG: digest, run_description.TAG: note}

    def _log_datasets(self, run_id: str, datasets: Sequence[DatasetInput]) -> None:
        from mlflow import entities

        def entity(dataset: DatasetInput) -> entities.DatasetInput:
            data = entities.Dataset(
                name=_cut(dataset.name, _NAME_CHARACTERS),
                digest=dataset.digest[:_DIGEST_CHARACTERS],
                source_type=dataset.source_type,
                source=_cut(json.dumps(dataset.source), _SOURCE_CHARACTERS),
                profile=json.dumps(dict(dataset.profile)),
            )
            return entities.DatasetInput(
                data, [entities.InputTag("mlflow.data.context", dataset.context)]
            )

        if datasets:
            self._client.log_inputs(run_id, [entity(dataset) for dataset in datasets])

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        # MLflow keeps NaN as it is and an infinity as the largest float; it keeps a point once,
        # because (key, value, step, timestamp) is its primary key.
        metrics = [Metric(p.key, p.value, _milliseconds(p.at), p.step) for p in points]
        with _translated():
            for start in range(0, len(metrics), _METRICS_PER_CALL):
                self._client.log_batch(run_id, metrics=metrics[start : start + _METRICS_PER_CALL])

    def tag(self, run_id: str, key: str) -> str | None:
        with _translated():
            found = self._client.get_run(run_id).data.tags.get(key)
        return None if found is None else str(found)

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        with _translated():
            self._client.set_tag(run_id, key, value)

    def sizes(self, run_id: str) -> dict[str, int]:
        with _translated():
            return dict(self._walk(run_id, None))

    def _walk(self, run_id: str, folder: str | None) -> Iterator[tuple[str, int]]:
        for item in self._client.list_artifacts(run_id, folder):
            if item.is_dir:
                yield from self._walk(run_id, item.path)
            else:
                yield item.path, item.file_size or 0

    def log_file(self, run_id: str, file: Path, name: str) -> None:
        path = PurePosixPath(name)
        folder = None if path.parent == PurePosixPath(".") else str(path.parent)
        with _translated():
            if path.name == file.name:
                self._client.log_artifact(run_id, str(file), folder)
            else:
                self._log_renamed(run_id, file, path.name, folder)

    def _log_renamed(self, run_id: str, file: Path, name: str, folder: str | None) -> None:
        """MLflow names an artifact after its file, so upload a link with the other name."""
        with tempfile.TemporaryDirectory() as scratch:
            link = Path(scratch) / name
            link.symlink_to(file.resolve())
            self._client.log_artifact(run_id, str(link), folder)

    def artifact_uri(self, run_id: str) -> str:
        with _translated():
            return str(self._client.get_run(run_id).info.artifact_uri)

    def remove_files(self, run_id: str) -> bool:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        with _translated():
            run = self._client.get_run(run_id)
            stored = get_artifact_repository(run.info.artifact_uri, tracking_uri=self._uri)
            is_kept = model_registry.is_registered(self._client, run_id)
            for item in stored.list_artifacts():
                if not (is_kept and item.path == MODEL_FOLDER.rstrip("/")):
                    stored.delete_artifacts(item.path)
            if not is_kept:
                model_registry.remove_logged(self._client, run)
        return not is_kept

    def add_model(self, run_id: str, model: FinishedModel) -> None:
        with _translated():
            run = self._client.get_run(run_id)
            source = f"{run.info.artifact_uri}/{MODEL_FOLDER.rstrip('/')}"
            logged = model_registry.log(self._client, run, source, model)
            if model.register_as is not None:
                model_registry.register(self._client, logged, source, model.register_as, model)

    def end(self, run_id: str, status: RunStatus, at: datetime, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        final = [RunTag(key, _cut(value, _TAG_CHARACTERS)) for key, value in tags.items()]
        with _translated():
            self._client.log_batch(run_id, tags=final)
            self._client.set_terminated(run_id, status, _milliseconds(at))

    def reopen(self, run_id: str, tags: Sequence[str]) -> None:
        with _translated():
            run = self._client.get_run(run_id)
            if run.info.status == "RUNNING":
                return
            for key in tags:
                if key in run.data.tags:
                    self._client.delete_tag(run_id, key)
            # MLflow cannot remove the end time; the next end overwrites it.
            self._client.update_run(run_id, status="RUNNING")


@contextmanager
def _translated() -> Iterator[None]:
    """Turn every exception of mlflow into one of the two errors that callers distinguish.

    Its artifact stores raise the errors of their own libraries, so anything but a clear refusal
    means unreachable; so do 401 and 403, because the operator can fix them.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.get_http_status_code() in (400, 404, 409):
            raise TrackerRejectedError(str(error)) from error
        raise TrackerUnreachableError(str(error)) from error
    except Exception as error:
        raise TrackerUnreachableError(f"{type(error).__name__}: {error}") from error


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _cut(text: str, characters: int) -> str:
    """`text`, cut and marked with an ellipsis if it is too long."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def log_missing(
    tracker: Tracker,
    run_id: str,
    files: Mapping[str, Path],
    until: float = math.inf,
    changed: Collection[str] = (),
) -> bool:
    """Upload the `files` (artifact name → file) that the run lacks; whether it has all of them now.

    Starts no upload after `until` (time.monotonic). An artifact of the right size is not sent again
    unless it is in `changed`: only a promotion changes a job's artifacts.
    """
    present = tracker.sizes(run_id)
    for name, file in files.items():
        if present.get(name) == file.stat().st_size and name not in changed:
            continue
        if time.monotonic() > until:
            return False
        tracker.log_file(run_id, file, name)
    return True
