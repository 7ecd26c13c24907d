"""Builds the request that a stage is given, from rows that are read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.contract import follow_up
from service.contract.failures import FailureCode, StageError
from service.contract.follow_up import Promote, Publish
from service.contract.spec import splits
from service.contract.spec.dataset import UploadDataset
from service.contract.spec.hub import HubSpec
from service.contract.stage import home_paths
from service.contract.stage.stages import (
    BaseJob,
    PrepareResult,
    ResumeSource,
    StageRequest,
    TrainResult,
)
from service.contract.states import Stage
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import attempt_reports
from service.store.jobs.claims import Claim
from service.store.tables.files import FileRow
from service.store.tables.jobs import CheckpointRow
from worker.storage import atomic_dir
from worker.supervision import base_job
from worker.tracking import shipper
from worker.tracking.trackers import Tracker

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Inputs:
    """The inputs of an attempt, as the database has them."""

    registered: list[CheckpointRow]
    """The job's checkpoints, the newest first."""
    files: dict[str, Path]
    file_names: dict[str, str]
    base_job: BaseJob | None
    resume_source: ResumeSource | None

    @classmethod
    def read(
        cls, session: Session, settings: Settings, claim: Claim, prepared: PrepareResult | None
    ) -> Self:
        """Raises StageError: dataset_not_found, model_not_found, checkpoint_unreadable."""
        registered = attempt_reports.registered_checkpoints(session, claim.job_id)
        if claim.stage is not Stage.PREPARE:
            return cls(registered, {}, {}, None, None)
        files, names = _uploaded_files(session, settings, claim)
        base = base_job.resolve(session, claim.scope, settings, claim.spec)
        source = base_job.resume_source(session, claim.scope, settings, claim.spec, prepared)
        return cls(registered, files, names, base, source)


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
    asked = follow_up.parsed(claim.follow_up)
    with database.read() as session:
        inputs = _Inputs.read(session, settings, claim, prepared)
    spec = claim.spec if claim.stage is Stage.PREPARE else base_job.named(claim.spec, prepared)
    if isinstance(asked, Publish):  # the target that the user has named since
        spec = spec.model_copy(update={"hub": asked.hub})
        prepared = prepared and prepared.model_copy(update={"hub_model_id": None})
    more: dict[str, Any] = {}
    if claim.stage is Stage.TRAIN:
        promoted = asked.step if isinstance(asked, Promote) else None
        more["resume_from"] = _resume_from(database, settings, claim, inputs, prepared, promoted)
        more["promotes"] = promoted is not None
    elif claim.stage is Stage.PUBLISH:
        more["mlflow_run_id"] = shipper.ensure_run(database, tracker, claim.job_id)
        step = trained["model_step"] if trained and asked is None else None
        more |= _to_push(inputs, spec.hub, workspace, step)
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
        files=inputs.files,
        file_names=inputs.file_names,
        data_roots=settings.data_roots,
        model_roots=settings.model_roots,
        max_prepared_bytes=settings.max_prepared_bytes,
        base_job=inputs.base_job,
        resume_source=inputs.resume_source,
        prepared=prepared,
        trained=TrainResult.model_validate(trained) if trained else None,
        mlflow_uri=settings.mlflow_uri,
        hub_endpoint=settings.hub_endpoint,
        gpus=list(claim.gpus),
        **more,
    )


def _uploaded_files(
    session: Session, settings: Settings, claim: Claim
) -> tuple[dict[str, Path], dict[str, str]]:
    """By their ids: where they are, and the names that their users gave them."""
    if not isinstance(claim.spec.dataset, UploadDataset):
        return {}, {}
    wanted = splits.items(claim.spec)
    owned = claim.scope.filter(FileRow.project_id)
    rows = session.scalars(select(FileRow).where(FileRow.id.in_(wanted), owned))
    known = {row.id: row.filename for row in rows}
    files = {file_id: settings.files_dir / file_id for file_id in wanted}
    missing = sorted(id_ for id_, path in files.items() if id_ not in known or not path.is_file())
    if missing:
        raise StageError(
            FailureCode.DATASET_NOT_FOUND,
            f"No uploaded file has the id {', '.join(missing)}; it may have been deleted.",
            missing=missing,
        )
    return files, known


def remove_leftovers(database: Database, claim: Claim, workspace: Path) -> None:
    """The folders of pruned checkpoints that a crash has left, which may fill the disk."""
    with database.read() as session:
        kept = {row.path for row in attempt_reports.registered_checkpoints(session, claim.job_id)}
        pruned = attempt_reports.pruned_paths(session, claim.job_id)
    for path in pruned:
        folder = (workspace / path).resolve()
        if path not in kept and folder.is_relative_to(workspace) and folder.is_dir():
            atomic_dir.remove(folder)


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


def _resume_from(
    database: Database,
    settings: Settings,
    claim: Claim,
    inputs: _Inputs,
    prepared: PrepareResult | None,
    promoted: int | None,
) -> Path | None:
    """The checkpoint to promote, else the job's newest that is unchanged on disk, else the one of
    the job it resumes from. Raises StageError(checkpoint_unreadable, files_missing)."""
    if prepared is not None:
        _require_there(prepared.folders(), settings)
    workspace = settings.workspace(claim.job_id)
    wanted = [row for row in inputs.registered if promoted in (None, row.step)]
    found = next((row for row in wanted if _is_as_registered(workspace, row)), None)
    if promoted is not None:
        if found is not None:
            return workspace / found.path
        message = (
            f"The checkpoint of step {promoted}, which was to become the job's model, cannot be "
            "read."
        )
        raise StageError(FailureCode.CHECKPOINT_UNREADABLE, message, steps=[promoted])
    if found is not None:
        with database.write() as session:
            attempt_reports.resumed(session, claim.job_id, claim.epoch, found.step)
        return workspace / found.path
    if wanted:
        raise StageError(
            FailureCode.CHECKPOINT_UNREADABLE,
            f"None of the {len(wanted)} registered checkpoints can be read.",
            steps=[row.step for row in wanted],
        )
    source = prepared.resume_source if prepared is not None else None
    if source is None:
        return None
    _require_there({"checkpoint_of_other_job": source.folder}, settings)
    with database.write() as session:
        attempt_reports.resumed(session, claim.job_id, claim.epoch, source.step, of_job=source.job)
    return source.folder


def _is_as_registered(workspace: Path, row: CheckpointRow) -> bool:
    folder = workspace / row.path
    reason = atomic_dir.why_unusable(folder)
    if reason is None and atomic_dir.manifest_sha256(folder) == row.manifest_sha256:
        return True
    reason = reason or "it is not the one that was registered"
    log.warning("checkpoint.unreadable", step=row.step, path=row.path, reason=reason)
    return False


def _to_push(
    inputs: _Inputs, hub: HubSpec | None, workspace: Path, model_step: int | None
) -> dict[str, list[Path]]:
    """`checkpoints` and `left_over` of a request. `model_step`: whose model the training has
    finished with; None if that was pushed before, or is another model."""
    if hub is None or not hub.pushes_while_training:
        return {}
    good = [workspace / row.path for row in inputs.registered if _is_as_registered(workspace, row)]
    along = {"checkpoint": good[:1], "all_checkpoints": good}.get(hub.strategy, [])
    if model_step is None:
        return {"checkpoints": along}
    # The newest one's model must be on the Hub in any case, but as the finished one where it is it.
    wanted = good if hub.always_push else good[:1]
    left = [folder for folder in reversed(wanted) if int(folder.name) != model_step]
    return {"checkpoints": along, "left_over": left}
