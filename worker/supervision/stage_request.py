"""Builds the request that a stage is given."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import select

from service.contract import follow_up, home_paths, splits
from service.contract.dataset import UploadDataset
from service.contract.failures import FailureCode, StageError
from service.contract.follow_up import Promote, Publish
from service.contract.spec import JobSpec
from service.contract.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Stage
from service.settings import Settings
from service.store import history
from service.store.claims import Claim
from service.store.database import Database
from service.store.models import CheckpointRow, FileRow
from worker.storage import atomic_dir
from worker.supervision import base_job, resume_source
from worker.tracking import shipper
from worker.tracking.trackers import Tracker

log = structlog.get_logger(__name__)


def build(database: Database, settings: Settings, tracker: Tracker, claim: Claim) -> StageRequest:
    """The request of this attempt; creates its folder.

    Raises StageError if an uploaded file does not exist any more (dataset_not_found), the model of
    another job does not (model_not_found), what `prepare` made does not (files_missing), or no
    registered checkpoint can be read, of this job or of the one it resumes from
    (checkpoint_unreadable).
    """
    workspace = settings.workspace(claim.job_id)
    attempt_dir = workspace / "attempts" / str(claim.epoch)
    attempt_dir.mkdir(parents=True, exist_ok=True)
    prepared = PrepareResult.of_results(claim.results, settings.home)
    trained = claim.results.get(Stage.TRAIN)
    spec = claim.spec if claim.stage is Stage.PREPARE else base_job.named(claim.spec, prepared)
    asked = follow_up.parsed(claim.follow_up)
    if isinstance(asked, Publish):
        spec, prepared = _with_target(spec, prepared, asked)
    match claim.stage:
        case Stage.PREPARE:
            inputs = _prepare_inputs(database, settings, claim, spec, prepared)
        case Stage.TRAIN:
            promoted = asked.step if isinstance(asked, Promote) else None
            if prepared is not None:
                _require_there(prepared.folders(), settings)
            inputs = _train_inputs(database, settings, claim, prepared, promoted)
        case Stage.PUBLISH:
            inputs = _publish_inputs(database, tracker, claim, spec, workspace)
    return StageRequest(
        job_id=claim.job_id,
        project_id=claim.project_id,
        stage=claim.stage,
        epoch=claim.epoch,
        attempt=claim.attempt,
        spec=spec,
        workspace=workspace,
        attempt_dir=attempt_dir,
        cache_dir=settings.cache_dir,
        data_roots=settings.data_roots,
        model_roots=settings.model_roots,
        max_prepared_bytes=settings.max_prepared_bytes,
        prepared=prepared,
        trained=TrainResult.model_validate(trained) if trained else None,
        mlflow_uri=settings.mlflow_uri,
        hub_endpoint=settings.hub_endpoint,
        gpus=list(claim.gpus),
        **inputs,
    )


def _prepare_inputs(
    database: Database,
    settings: Settings,
    claim: Claim,
    spec: JobSpec,
    prepared: PrepareResult | None,
) -> dict[str, Any]:
    return {
        **_uploaded_files(database, settings, claim),
        "base_job": base_job.resolve(database, claim.scope, settings, claim.spec),
        "resume_source": resume_source.resolve(database, claim.scope, settings, spec, prepared),
    }


def _train_inputs(
    database: Database,
    settings: Settings,
    claim: Claim,
    prepared: PrepareResult | None,
    promoted: int | None,
) -> dict[str, Any]:
    return {
        "resume_from": _resume_from(database, settings, claim, prepared, promoted),
        "promotes": promoted is not None,
    }


def _publish_inputs(
    database: Database, tracker: Tracker, claim: Claim, spec: JobSpec, workspace: Path
) -> dict[str, Any]:
    return {
        "mlflow_run_id": shipper.ensure_run(database, tracker, claim.job_id),
        "checkpoints": _to_push(database, claim, spec, workspace),
    }


def _require_there(needed: Mapping[str, Path], settings: Settings) -> None:
    """Raises StageError(files_missing), after which the job is prepared again."""
    missing = [
        name
        for name, folder in needed.items()
        if not home_paths.is_there(folder, settings.home, settings.model_roots)
    ]
    if missing:
        raise StageError(
            FailureCode.FILES_MISSING,
            f"What `prepare` made for this job is not in FINETUNE_HOME: {', '.join(missing)}.",
            missing=missing,
        )


def _uploaded_files(database: Database, settings: Settings, claim: Claim) -> dict[str, Any]:
    dataset = claim.spec.dataset
    if not isinstance(dataset, UploadDataset):
        return {}
    wanted = splits.items(claim.spec)
    with database.read() as session:
        owned = claim.scope.of(FileRow.project_id)
        rows = session.scalars(select(FileRow).where(FileRow.id.in_(wanted), owned))
        known = {row.id: row.filename for row in rows}
    files = {file_id: settings.files_dir / file_id for file_id in wanted}
    gone = sorted(id_ for id_, path in files.items() if id_ not in known or not path.is_file())
    if gone:
        raise StageError(
            FailureCode.DATASET_NOT_FOUND,
            f"No uploaded file has the id {', '.join(gone)}; it may have been deleted.",
            missing=gone,
        )
    return {"files": files, "file_names": known}


def _resume_from(
    database: Database,
    settings: Settings,
    claim: Claim,
    prepared: PrepareResult | None,
    promoted: int | None,
) -> Path | None:
    """The checkpoint to promote, else the job's newest, else the one of the job it resumes from.
    Raises StageError(checkpoint_unreadable, files_missing)."""
    workspace = settings.workspace(claim.job_id)
    if promoted is None:
        own = _newest_checkpoint(database, claim, workspace)
        return own or _of_other_job(database, settings, claim, prepared)
    with database.read() as session:
        registered = history.registered_checkpoints(session, claim.job_id)
    for row in registered:
        if row.step == promoted and _is_as_registered(workspace, row):
            return workspace / row.path
    raise StageError(
        FailureCode.CHECKPOINT_UNREADABLE,
        f"The checkpoint of step {promoted}, which was to become the job's model, cannot be read.",
        steps=[promoted],
    )


def _newest_checkpoint(database: Database, claim: Claim, workspace: Path) -> Path | None:
    """The newest registered checkpoint of any attempt that is unchanged on disk."""
    with database.read() as session:
        registered = history.registered_checkpoints(session, claim.job_id)
    for row in registered:
        if _is_as_registered(workspace, row):
            with database.write() as session:
                history.resumed(session, claim.job_id, claim.epoch, row.step)
            return workspace / row.path
    if registered:
        raise StageError(
            FailureCode.CHECKPOINT_UNREADABLE,
            f"None of the {len(registered)} registered checkpoints can be read.",
            steps=[row.step for row in registered],
        )
    return None


def _of_other_job(
    database: Database, settings: Settings, claim: Claim, prepared: PrepareResult | None
) -> Path | None:
    source = prepared.resume_source if prepared is not None else None
    if source is None:
        return None
    _require_there({"checkpoint_of_other_job": source.folder}, settings)
    with database.write() as session:
        history.resumed(session, claim.job_id, claim.epoch, source.step, of_job=source.job)
    return source.folder


def _is_as_registered(workspace: Path, row: CheckpointRow) -> bool:
    folder = workspace / row.path
    reason = atomic_dir.why_unusable(folder)
    if reason is None and atomic_dir.manifest_sha256(folder) == row.manifest_sha256:
        return True
    reason = reason or "it is not the one that was registered"
    log.warning("checkpoint.unreadable", step=row.step, path=row.path, reason=reason)
    return False


def _with_target(
    spec: JobSpec, prepared: PrepareResult | None, asked: Publish
) -> tuple[JobSpec, PrepareResult | None]:
    """With the target that the user has named since, instead of the one from `prepare`."""
    if prepared is not None:
        prepared = prepared.model_copy(update={"hub_model_id": None})
    return spec.model_copy(update={"hub": asked.hub}), prepared


def _to_push(database: Database, claim: Claim, spec: JobSpec, workspace: Path) -> list[Path]:
    """The checkpoints that `publish` pushes with the model, the newest first."""
    hub = spec.hub
    if hub is None or hub.strategy not in ("checkpoint", "all_checkpoints"):
        return []
    with database.read() as session:
        registered = history.registered_checkpoints(session, claim.job_id)
    good = [workspace / row.path for row in registered if _is_as_registered(workspace, row)]
    return good[:1] if hub.strategy == "checkpoint" else good


def leftovers(database: Database, claim: Claim, workspace: Path) -> Iterator[Path]:
    """Folders of pruned checkpoints that a crash has left on disk."""
    with database.read() as session:
        kept = {row.path for row in history.registered_checkpoints(session, claim.job_id)}
        pruned = history.pruned_paths(session, claim.job_id)
    for path in pruned:
        folder = (workspace / path).resolve()
        if path not in kept and folder.is_relative_to(workspace) and folder.is_dir():
            yield folder
