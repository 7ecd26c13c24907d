"""Builds what a stage is given: its request, its command and its environment."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy import select

from service.contract import follow_up, splits
from service.contract.failures import FailureCode, StageError
from service.contract.follow_up import Promote, Publish
from service.contract.spec import JobSpec, UploadDataset
from service.contract.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Stage
from service.settings import Settings
from service.store import history
from service.store.claims import Claim
from service.store.database import Database
from service.store.models import CheckpointRow, FileRow
from worker.processes import allocator
from worker.processes.fork_protocol import LAUNCHER
from worker.storage import atomic_dir
from worker.supervision import base_job, resume_source
from worker.tracking import shipper
from worker.tracking.trackers import Tracker

log = structlog.get_logger(__name__)

# The operator's settings and secrets: a stage needs none of them, or gets its own copy below.
# _MLFLOW_: what mlflow notes there of the process that imported it, which no stage is.
_SCRUBBED_PREFIXES: Final = (
    *("FINETUNE_", "MLFLOW_", "_MLFLOW_", "CELERY_", "PG", "AWS_", "AZURE_", "GOOGLE_"),
)
_SCRUBBED: Final = frozenset(
    {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HF_TOKEN_PATH"}
)

_SPINS: Final = "GOMP_SPINCOUNT"
# What the operator can set otherwise, as libraries read it when they are loaded.
_LIBRARIES: Final = {
    # oneDNN keeps its programs for so many shapes, a third of a megabyte each, where its own limit
    # is 1,024. A step of 32 packed sequences needs 170; with fewer than it needs each layer makes
    # its own.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    # How often a waiting thread checks before it sleeps. With libgomp's own 300,000 the waiting
    # threads of one training keep the cores from another one; with 0 a training that is alone
    # loses time whenever its threads wake up.
    _SPINS: "10000",
}


def stage_command(request: StageRequest, request_file: Path) -> list[str]:
    """-P: what lies in the working directory is data, and never imported."""
    module, processes = f"worker.stages.{request.stage}", request.spec.resources.processes
    command = [module, str(request_file)]
    if request.stage is Stage.TRAIN and processes > 1:
        command = [LAUNCHER, str(processes), *command]
    return [sys.executable, "-P", "-m", *command]


def stage_environment(settings: Settings, stage: Stage, gpus: Sequence[str] = ()) -> dict[str, str]:
    """Ours without its secrets; only `prepare` and `publish` get the Hub token.

    `gpus`: UUIDs of those that the stage may use; it sees no other.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _SCRUBBED and not name.startswith(_SCRUBBED_PREFIXES)
    }
    environment |= {
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # No token of the account that the worker runs under, either.
        "HF_TOKEN_PATH": os.devnull,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        # For a user's eyes: as nvidia-smi numbers them, and not the fastest first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # torch asks NVML how many there are, which starts no CUDA, and for none it asks nobody.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    # What is downloaded lies with our other caches, unless the operator keeps one for all.
    environment.setdefault("HF_HOME", str(settings.cache_dir / "huggingface"))
    if settings.hub_endpoint is not None:
        environment["HF_ENDPOINT"] = settings.hub_endpoint
    environment = allocator.preloading(settings.malloc, _for_libraries(environment))
    if stage is Stage.TRAIN:
        return environment | {"HF_HUB_OFFLINE": "1"}
    if settings.hub_token is not None:
        environment["HF_TOKEN"] = settings.hub_token.get_secret_value()
    return environment


def _for_libraries(environment: dict[str, str]) -> dict[str, str]:
    """`environment`, and what the operator has not set. libgomp ignores OMP_WAIT_POLICY where there
    is a spin count, so none is added to an operator's policy."""
    own = dict(_LIBRARIES)
    if "OMP_WAIT_POLICY" in environment:
        del own[_SPINS]
    return own | environment


def push_command(request_file: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "worker.stages.push", str(request_file)]


def push_environment(settings: Settings) -> dict[str, str]:
    """That of `publish`, which sees no GPU either."""
    return stage_environment(settings, Stage.PUBLISH)


def build(database: Database, settings: Settings, tracker: Tracker, claim: Claim) -> StageRequest:
    """The request of this attempt, with its folder made.

    Raises StageError: an uploaded file is gone (dataset_not_found), the model of another job is
    (model_not_found), or no registered checkpoint can be read (checkpoint_unreadable), nor that
    of another job that it continues.
    """
    workspace = settings.workspace(claim.job_id)
    attempt_dir = workspace / "attempts" / str(claim.epoch)
    attempt_dir.mkdir(parents=True, exist_ok=True)
    prepared, trained = _prepared(claim), claim.results.get(Stage.TRAIN)
    is_prepare, is_train = claim.stage is Stage.PREPARE, claim.stage is Stage.TRAIN
    asked = follow_up.parsed(claim.follow_up)
    promoted = asked.step if isinstance(asked, Promote) and is_train else None
    spec = claim.spec if is_prepare else base_job.named(claim.spec, prepared)
    if isinstance(asked, Publish):
        spec, prepared = _for_publish(spec, prepared, asked)
    run_id = None
    if claim.stage is Stage.PUBLISH:
        run_id = shipper.ensure_run(database, tracker, claim.job_id)
    return StageRequest(
        job_id=claim.job_id,
        stage=claim.stage,
        epoch=claim.epoch,
        attempt=claim.attempt,
        spec=spec,
        workspace=workspace,
        attempt_dir=attempt_dir,
        cache_dir=settings.cache_dir,
        files=_uploaded_files(database, settings, claim) if is_prepare else {},
        data_roots=settings.data_roots,
        model_roots=settings.model_roots,
        base_job=base_job.resolve(database, settings, claim.spec) if is_prepare else None,
        resume_source=(
            resume_source.resolve(database, settings, spec, prepared) if is_prepare else None
        ),
        prepared=prepared,
        trained=TrainResult.model_validate(trained) if trained else None,
        resume_from=(
            _resume_from(database, claim, workspace, prepared, promoted) if is_train else None
        ),
        promotes=promoted is not None,
        checkpoints=_to_push(database, claim, spec, workspace),
        mlflow_uri=settings.mlflow_uri,
        mlflow_run_id=run_id,
        hub_endpoint=settings.hub_endpoint,
        gpus=list(claim.gpus),
    )


def _prepared(claim: Claim) -> PrepareResult | None:
    result = claim.results.get(Stage.PREPARE)
    return PrepareResult.model_validate(result) if result else None


def _uploaded_files(database: Database, settings: Settings, claim: Claim) -> dict[str, Path]:
    dataset = claim.spec.dataset
    if not isinstance(dataset, UploadDataset):
        return {}
    wanted = splits.items(claim.spec)
    with database.read() as session:
        known = set(session.scalars(select(FileRow.id).where(FileRow.id.in_(wanted))))
    files = {file_id: settings.files_dir / file_id for file_id in wanted}
    gone = sorted(id_ for id_, path in files.items() if id_ not in known or not path.is_file())
    if gone:
        raise StageError(
            FailureCode.DATASET_NOT_FOUND,
            f"No uploaded file has the id {', '.join(gone)}; it may have been deleted.",
            missing=gone,
        )
    return files


def _resume_from(
    database: Database,
    claim: Claim,
    workspace: Path,
    prepared: PrepareResult | None,
    promoted: int | None,
) -> Path | None:
    """The checkpoint to promote, else the newest, else that of the job that the training continues;
    StageError(checkpoint_unreadable)."""
    if promoted is None:
        own = _newest_checkpoint(database, claim, workspace)
        return own or _of_other_job(database, claim, prepared)
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
    """The newest registered checkpoint, of any attempt, that is on disk as it was registered."""
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


def _of_other_job(database: Database, claim: Claim, prepared: PrepareResult | None) -> Path | None:
    source = prepared.resume_source if prepared is not None else None
    if source is None:
        return None
    with database.write() as session:
        history.resumed(session, claim.job_id, claim.epoch, source.step, of_job=source.job)
    return source.folder


def _is_as_registered(workspace: Path, row: CheckpointRow) -> bool:
    folder = workspace / row.path
    if atomic_dir.verify(folder) and atomic_dir.manifest_sha256(folder) == row.manifest_sha256:
        return True
    log.warning("a registered checkpoint cannot be read", step=row.step, path=row.path)
    return False


def _for_publish(
    spec: JobSpec, prepared: PrepareResult | None, asked: Publish
) -> tuple[JobSpec, PrepareResult | None]:
    """With the target that the user has named since, in place of the one that `prepare` looked
    up."""
    if prepared is not None:
        prepared = prepared.model_copy(update={"hub_model_id": None})
    return spec.model_copy(update={"hub": asked.hub}), prepared


def _to_push(database: Database, claim: Claim, spec: JobSpec, workspace: Path) -> list[Path]:
    """What `publish` pushes beside the model, the newest first."""
    hub = spec.hub
    if claim.stage is not Stage.PUBLISH or hub is None:
        return []
    if hub.strategy not in ("checkpoint", "all_checkpoints"):
        return []
    with database.read() as session:
        registered = history.registered_checkpoints(session, claim.job_id)
    good = [workspace / row.path for row in registered if _is_as_registered(workspace, row)]
    return good[:1] if hub.strategy == "checkpoint" else good


def leftovers(database: Database, claim: Claim, workspace: Path) -> Iterator[Path]:
    """Folders of pruned checkpoints that a crash left on disk."""
    with database.read() as session:
        kept = {row.path for row in history.registered_checkpoints(session, claim.job_id)}
        pruned = history.pruned_paths(session, claim.job_id)
    for path in pruned:
        folder = (workspace / path).resolve()
        if path not in kept and folder.is_relative_to(workspace) and folder.is_dir():
            yield folder
