"""The publish stage: model card, MLflow artifacts, Hub.

Started as `python -m worker.stages.publish.stage <request.json>`; finds the Hub token in HF_TOKEN.
Every step can be repeated: files that have been sent are not sent again.
"""

from collections.abc import Mapping
from pathlib import Path

from service.contract.stage.events import Notice, PhaseChanged
from service.contract.stage.stages import PublishResult, StageRequest
from service.contract.states import Phase
from worker.publishing import hub_repository, model_card
from worker.stages import artifacts
from worker.stages.base import Channel, run_stage
from worker.tracking.trackers import (
    MODEL_FOLDER,
    MlflowTracker,
    TrackerRejectedError,
    TrackerUnreachableError,
    log_missing,
)

_MLFLOW_SECONDS = 60
"""Longer than for metrics: the server responds only after it has stored the upload."""


def main(request: StageRequest, channel: Channel) -> PublishResult:
    assert request.trained is not None, "`publish` runs after `train`"
    if request.trained.output_dir is None:
        # No model: the job's registered files are sent to MLflow before its run ends.
        return PublishResult()
    output = request.workspace / request.trained.output_dir
    files = {
        path.relative_to(output).as_posix(): path
        for path in sorted(output.rglob("*"))
        if path.is_file()
    }
    files["README.md"] = _write_card(request, channel)
    artifact_uri = _log_model(request, channel, files)
    url, commit = _push(request, channel, files)
    return PublishResult(mlflow_artifact_uri=artifact_uri, hub_url=url, hub_commit=commit)


def _write_card(request: StageRequest, channel: Channel) -> Path:
    """Write the card to this attempt's folder: the model's folder belongs to the training."""
    assert request.prepared is not None
    assert request.trained is not None
    channel.send(PhaseChanged(phase=Phase.WRITING_MODEL_CARD))
    card = request.attempt_dir / "README.md"
    text = model_card.render(request, request.prepared, request.trained)
    card.write_text(text, encoding="utf-8")
    artifacts.announce({f"{MODEL_FOLDER}README.md": card}, request.workspace, channel.send)
    return card


# ---- MLflow -----------------------------------------------------------------------------------


def _log_model(request: StageRequest, channel: Channel, files: Mapping[str, Path]) -> str | None:
    """Upload the model to the job's run; its URI, or None if that is not requested or not possible.

    An unreachable tracker causes a notice and does not fail the job: all registered artifacts that
    the run lacks are uploaded later, before the run gets its final status.
    """
    if not request.spec.tracking.log_model or request.mlflow_uri is None:
        return None
    channel.send(PhaseChanged(phase=Phase.LOGGING_ARTIFACTS))
    try:
        if request.mlflow_run_id is None:
            raise TrackerUnreachableError("the job has no run yet")
        tracker = MlflowTracker(request.mlflow_uri, _MLFLOW_SECONDS)
        named = {f"{MODEL_FOLDER}{name}": path for name, path in files.items()}
        changed = named if request.trained and request.trained.is_promoted else ()
        log_missing(tracker, request.mlflow_run_id, named, changed=changed)
        return f"{tracker.artifact_uri(request.mlflow_run_id)}/{MODEL_FOLDER.rstrip('/')}"
    except (TrackerUnreachableError, TrackerRejectedError) as error:
        message = "The model could not be sent to MLflow; it is sent when MLflow is reachable again"
        channel.send(Notice(message=message, data={"reason": str(error)[:500]}))
        return None


# ---- Hub --------------------------------------------------------------------------------------


def _push(
    request: StageRequest, channel: Channel, files: Mapping[str, Path]
) -> tuple[str | None, str | None]:
    """(URL of the repository, hash of the commit); (None, None) when the job has no `hub`."""
    target = request.hub_target
    if target is None:
        return None, None
    channel.send(PhaseChanged(phase=Phase.PUSHING))
    files = {**files, **hub_repository.checkpoint_files(request.checkpoints, target)}
    with hub_repository.refusals_explained():
        repository = hub_repository.Repository(request)
        url = repository.ensure_exists()
        _push_left_over(request, channel, repository)
        change = repository.change(files, request.workspace)
        title = target.commit_message or f"Fine-tuned model of {request.job_id}"
        commit = change.commit(title, request.job_id)
    message = f"The model is on the Hub: {commit.commit_url}"
    data = {"url": url, "commit": commit.oid, "revision": target.revision, "files": len(files)}
    channel.send(Notice(message=message, data=data))
    return url, commit.oid


def _push_left_over(
    request: StageRequest, channel: Channel, repository: hub_repository.Repository
) -> None:
    """Make the commits of checkpoints that were not pushed while the training ran."""
    there = repository.titles(request.job_id) if request.left_over else set()
    for checkpoint in request.left_over:
        title = hub_repository.title_of(checkpoint)
        if title in there:
            continue
        settings = hub_repository.newest_settings(request.workspace)
        change = repository.checkpoint_change(checkpoint, settings, request.workspace)
        commit = change.commit(title, request.job_id)
        message = f"The model of step {checkpoint.name} is on the Hub: {commit.commit_url}"
        data = {"step": int(checkpoint.name), "commit": commit.oid}
        channel.send(Notice(message=message, data=data))


if __name__ == "__main__":
    run_stage(main)
