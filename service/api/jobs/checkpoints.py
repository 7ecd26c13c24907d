"""One checkpoint of a job: its metrics, its files, and all of them in one archive."""

from pathlib import Path as FilePath
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Request, Response

from service.api.http.dependencies import DatabaseDep, DispatcherDep, JobId, SettingsDep
from service.api.http.download import DOWNLOAD_RESPONSES, send_file
from service.api.http.principal import JobsRead, JobsWrite
from service.api.jobs.archive import ArchiveResponse, archive_responses
from service.api.jobs.checkpoint_files import Entry, archive, entries
from service.api.jobs.page import read_page
from service.api.openapi.document import problems
from service.api.schemas.history import CheckpointDetail, CheckpointFile
from service.api.schemas.jobs import Job
from service.api.schemas.rows import model_from_row
from service.errors import ArtifactNotFoundError, CheckpointGoneError
from service.jobs import commands
from service.settings import Settings
from service.store.jobs import queries
from service.store.scope import Scope
from service.store.tables.jobs import CheckpointRow

router = APIRouter(prefix="/v1/jobs/{job_id}/checkpoints/{step}", tags=["jobs"])

Step = Annotated[int, Path(ge=0, le=2**31 - 1, description="Step of the checkpoint.")]


@router.get("", summary="One checkpoint", responses=problems(401, 404, 422, 503))
def get_checkpoint(
    principal: JobsRead, job_id: JobId, step: Step, database: DatabaseDep, settings: SettingsDep
) -> CheckpointDetail:
    """Its evaluation and its files; a checkpoint that was removed to make room has no files."""
    with database.read() as session:
        row = queries.checkpoint(session, principal.scope, job_id, step)
        newest = queries.newest_checkpoint(session, principal.scope, job_id)
        metrics = queries.evaluation(session, principal.scope, job_id, step)
    base = f"/v1/jobs/{job_id}/checkpoints/{step}"
    files = _listed(row, settings)
    return model_from_row(
        CheckpointDetail,
        row,
        last=step == newest,
        metrics=metrics,
        files=[
            CheckpointFile(**vars(file), url=f"{base}/files/{quote(file.name)}") for file in files
        ],
        archive_url=f"{base}/archive" if files else None,
    )


@router.get(
    "/files/{path:path}",
    summary="Download a file of a checkpoint",
    response_class=Response,
    responses={**DOWNLOAD_RESPONSES, **problems(401, 404, 410, 416, 422, 503)},
)
def get_checkpoint_file(
    principal: JobsRead,
    job_id: JobId,
    step: Step,
    path: Annotated[str, Path(description="Its `name`.", examples=["model.safetensors"])],
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
) -> Response:
    """Streamed; takes Range, If-Range and If-None-Match. 410 when it was removed to make room."""
    folder, files = _files(principal.scope, job_id, step, database, settings)
    found = [file for file in files if file.name == path]
    if not found:
        raise ArtifactNotFoundError(f"The checkpoint of step {step} has no file {path[:200]!r}.")
    return send_file(request, folder, path, path, found[0].sha256)


@router.get(
    "/archive",
    summary="Download a checkpoint",
    response_class=Response,
    responses={
        **archive_responses("checkpoint-<step>", "The manifest's sha256, quoted."),
        **problems(401, 404, 410, 422, 503),
    },
)
def get_checkpoint_archive(
    principal: JobsRead, job_id: JobId, step: Step, database: DatabaseDep, settings: SettingsDep
) -> Response:
    """All its files in one tar archive, built while it is sent; Content-Length is known."""
    folder, files = _files(principal.scope, job_id, step, database, settings)
    name = f"{job_id}-checkpoint-{step}.tar"
    return ArchiveResponse(archive(folder, files), filename=name, etag=files[-1].sha256)


@router.post(
    "/promote",
    summary="Make a checkpoint the job's model",
    responses=problems(401, 404, 409, 410, 422, 503),
)
def promote_checkpoint(
    principal: JobsWrite,
    job_id: JobId,
    step: Step,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    settings: SettingsDep,
) -> Job:
    """An ended job is queued again: it evaluates the checkpoint, makes it the job's model, and
    publishes it as it did before.

    The earlier model stays until then. If it fails, the job is `failed`, keeps its earlier result
    and can be retried. Asking again while it does so, or when it has done so, changes nothing.
    409 when it has not ended, 410 when the checkpoint was removed to make room.
    """
    commands.promote(database, dispatcher, settings, principal.scope, job_id, step)
    return read_page(database, principal.scope, job_id, settings)


def _files(
    scope: Scope, job_id: str, step: int, database: DatabaseDep, settings: Settings
) -> tuple[FilePath, list[Entry]]:
    """The folder and its files. Raises CheckpointGoneError when it was removed."""
    with database.read() as session:
        row = queries.checkpoint(session, scope, job_id, step)
    if row.pruned_at is not None:
        raise CheckpointGoneError(
            f"The checkpoint of step {step} was removed on {row.pruned_at:%Y-%m-%d} to make room "
            "(`training.save_total_limit` or FINETUNE_RETENTION_WORKSPACE_…).",
            step=step,
        )
    folder = _folder(row, settings)
    return folder, entries(folder, row.manifest_sha256)


def _folder(row: CheckpointRow, settings: Settings) -> FilePath:
    """Raises CheckpointGoneError for a folder outside of the job's workspace, which only a
    malicious stage can register."""
    workspace = settings.workspace(row.job_id).resolve()
    folder = (workspace / row.path).resolve()
    if not folder.is_relative_to(workspace):
        raise CheckpointGoneError(f"The checkpoint of step {row.step} is not on this server.")
    return folder


def _listed(row: CheckpointRow, settings: Settings) -> list[Entry]:
    """An empty list for a checkpoint that was removed."""
    if row.pruned_at is not None:
        return []
    try:
        return entries(_folder(row, settings), row.manifest_sha256)
    except CheckpointGoneError:
        return []
