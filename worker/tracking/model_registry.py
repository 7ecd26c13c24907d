"""A run's model as an MLflow model: logged by the run, and a version in the registry.

Neither stores a second copy: both refer to the run's files under `model/`.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion

_JOB_TAG = "finetune.job_id"
_VERSIONS_TAG = "mlflow.modelVersions"


@dataclass(frozen=True)
class FinishedModel:
    """The model of a job that has succeeded."""

    job_id: str
    name: str
    task: str
    step: int
    register_as: str | None
    alias: str


def log(client: "MlflowClient", run: "Run", source: str, model: FinishedModel) -> "LoggedModel":
    """Create the run's logged model; calling this again changes nothing."""
    from mlflow.entities import LoggedModelOutput

    run_id, experiment = run.info.run_id, run.info.experiment_id
    found = client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
    logged = next(iter(found), None) or client.create_logged_model(
        experiment,
        name=model.name,
        source_run_id=run_id,
        tags={_JOB_TAG: model.job_id, "finetune.artifacts": source},
        model_type=model.task,
    )
    outputs = run.outputs.model_outputs if run.outputs is not None else []
    if logged.model_id not in {output.model_id for output in outputs}:
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, model.step)])
    if logged.status != "READY":
        client.finalize_logged_model(logged.model_id, "READY")
    return logged


def register(
    client: "MlflowClient", logged: "LoggedModel", source: str, name: str, model: FinishedModel
) -> None:
    """Create one version for this run, and move the alias to it unless a newer version has it."""
    run_id = logged.source_run_id
    _ensure_registered_model(client, name)
    found = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    version = next(iter(found), None) or client.create_model_version(
        name, source=source, run_id=run_id, tags={_JOB_TAG: model.job_id}
    )
    _show_version(client, logged, version)
    aliases = client.get_registered_model(name).aliases
    if int(aliases.get(model.alias, 0)) < int(version.version):
        client.set_registered_model_alias(name, model.alias, str(version.version))


def is_registered(client: "MlflowClient", run_id: str) -> bool:
    """Whether a version in the registry has this run's files."""
    return bool(client.search_model_versions(f"run_id = '{run_id}'"))


def remove_logged(client: "MlflowClient", run: "Run") -> None:
    """Its files are removed."""
    for found in client.search_logged_models(
        [run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"
    ):
        client.delete_logged_model(found.model_id)


def _show_version(client: "MlflowClient", logged: "LoggedModel", version: "ModelVersion") -> None:
    """Show the version on the logged model's page, which otherwise shows "Not registered": MLflow
    does this itself only for versions whose files belong to the logged model."""
    known = json.loads(logged.tags.get(_VERSIONS_TAG, "[]"))
    this = {"name": version.name, "version": str(version.version)}
    if this not in known:
        client.set_logged_model_tags(logged.model_id, {_VERSIONS_TAG: json.dumps([*known, this])})


def _ensure_registered_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
