"""What `prepare` does for `training.resume_from`: compares what can be compared before a GPU is
needed, and takes the other job's checkpoint into the job's own folder."""

import shutil
from pathlib import Path

from service.contract.failures import FailureCode, StageError
from service.contract.stages import ResumeSource, StageRequest
from worker.base_model import files
from worker.storage import atomic_dir


def taken_over(
    request: StageRequest, data_fingerprint: str, model_revision: str | None
) -> ResumeSource | None:
    """The checkpoint in a folder of this attempt; None without `training.resume_from`.

    StageError: the data or the base model is not that of the other job (invalid_option), the
    checkpoint cannot be read (checkpoint_unreadable), or a job that is prepared again finds another
    one than the first time (data_changed).
    """
    source = request.resume_source
    if source is None:
        return None
    _require_same_inputs(source, data_fingerprint, model_revision)
    before = request.prepared.resume_source if request.prepared is not None else None
    if before is not None and before.sha256 != source.sha256:
        message = f"The checkpoint of {before.job} is not the one that this job began with."
        raise StageError(FailureCode.DATA_CHANGED, message, before=before.step, now=source.step)
    folder = source.folder
    if not folder.is_relative_to(request.workspace):
        folder = _linked(source, request.attempt_dir / "resume_from" / str(source.step))
    _require_intact(source, folder)
    return source.model_copy(update={"folder": folder})


def _require_same_inputs(
    source: ResumeSource, data_fingerprint: str, model_revision: str | None
) -> None:
    if source.data_fingerprint != data_fingerprint:
        raise _invalid(
            f"continues job {source.job}, but what is trained and evaluated on is not the same: "
            f"the fingerprint of its prepared data is {source.data_fingerprint}, and that of this "
            f"job's {data_fingerprint}. Give the same `dataset`, or begin with the model of its "
            "checkpoint alone (`model.job`)",
            before=source.data_fingerprint,
            now=data_fingerprint,
        )
    if source.model_revision != model_revision:
        raise _invalid(
            f"continues job {source.job}, whose base model was taken at {source.model_revision}, "
            f"this job's at {model_revision}: set `model.revision`",
            before=source.model_revision,
            now=model_revision,
        )


def _linked(source: ResumeSource, target: Path) -> Path:
    """Hard links, so that all is there when the other job's is removed; whole or not at all."""
    unfinished = target.with_name(f"{target.name}.tmp")
    for folder in (target, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        files.link_all(
            {path.name: path for path in source.folder.iterdir() if path.is_file()}, unfinished
        )
    except OSError as error:
        raise _unreadable(source, str(error)) from error
    unfinished.rename(target)
    atomic_dir.sync_tree(target.parent)
    return target


def _require_intact(source: ResumeSource, folder: Path) -> None:
    if not atomic_dir.verify(folder):
        raise _unreadable(source, "its manifest does not match its files")
    if atomic_dir.manifest_sha256(folder) != source.sha256:
        raise _unreadable(source, "it is not the one that was registered")


def _unreadable(source: ResumeSource, why: str) -> StageError:
    message = f"The checkpoint of step {source.step} of job {source.job} cannot be read: {why}"
    return StageError(FailureCode.CHECKPOINT_UNREADABLE, message, step=source.step)


def _invalid(what: str, **details: str | None) -> StageError:
    option = "training.resume_from"
    return StageError(FailureCode.INVALID_OPTION, f"`{option}` {what}", option=option, **details)
