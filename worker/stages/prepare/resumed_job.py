"""`training.resume_from` in `prepare`, before a GPU is needed: check that both jobs have the same
inputs, and copy its checkpoint into this job's folder."""

import shutil
from pathlib import Path

from service.contract.failures import FailureCode, StageError
from service.contract.stage.stages import ResumeSource, StageRequest
from worker.base_model import files
from worker.failures import invalid_option
from worker.storage import atomic_dir


def taken_over(
    request: StageRequest, data_fingerprint: str, model_revision: str | None
) -> ResumeSource | None:
    """The checkpoint in a folder of this attempt; None without `training.resume_from`.

    StageError: invalid_option (the other job had other data or another base model),
    checkpoint_unreadable, or data_changed (a job that is prepared again finds another checkpoint
    than the first time).
    """
    source = request.resume_source
    if source is None:
        return None
    _require_same_inputs(source, data_fingerprint, model_revision)
    before = request.prepared.resume_source if request.prepared is not None else None
    if before is not None and before.sha256 != source.sha256:
        message = f"The checkpoint of {before.job} is not the one that this job started from."
        raise StageError(FailureCode.DATA_CHANGED, message, before=before.step, now=source.step)
    folder = source.folder
    if not folder.is_relative_to(request.workspace):
        folder = _copied(source, request.attempt_dir / "resume_from" / str(source.step))
    _require_intact(source, folder)
    return source.model_copy(update={"folder": folder})


def _require_same_inputs(
    source: ResumeSource, data_fingerprint: str, model_revision: str | None
) -> None:
    if source.data_fingerprint != data_fingerprint:
        raise invalid_option(
            "training.resume_from",
            f"continues job {source.job}, but this job has other data: the fingerprint of that "
            f"job's prepared data is {source.data_fingerprint}, and of this job's "
            f"{data_fingerprint}. Use the same `dataset`, or start from the checkpoint's model "
            "only (`model.job`)",
            before=source.data_fingerprint,
            now=data_fingerprint,
        )
    if source.model_revision != model_revision:
        raise invalid_option(
            "training.resume_from",
            f"continues job {source.job}, which used revision {source.model_revision} of the base "
            f"model, but this job uses {model_revision}: set `model.revision`",
            before=source.model_revision,
            now=model_revision,
        )


def _copied(source: ResumeSource, target: Path) -> Path:
    """Whole or not at all."""
    unfinished = target.with_name(f"{target.name}.tmp")
    for folder in (target, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        files.own_files(
            {path.name: path for path in source.folder.iterdir() if path.is_file()}, unfinished
        )
    except OSError as error:
        raise _unreadable(source, str(error)) from error
    unfinished.rename(target)
    atomic_dir.sync_tree(target.parent)
    return target


def _require_intact(source: ResumeSource, folder: Path) -> None:
    reason = atomic_dir.why_unusable(folder)
    if reason is not None:
        raise _unreadable(source, reason)
    if atomic_dir.manifest_sha256(folder) != source.sha256:
        raise _unreadable(source, "it is not the one that was registered")


def _unreadable(source: ResumeSource, why: str) -> StageError:
    message = f"The checkpoint of step {source.step} of job {source.job} cannot be read: {why}"
    return StageError(FailureCode.CHECKPOINT_UNREADABLE, message, step=source.step)
