"""The finished model of a job as one tar archive."""

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request, Response

from service.api.http.dependencies import DatabaseDep, JobId, SettingsDep
from service.api.http.principal import JobsRead
from service.api.jobs.archive import (
    Archive,
    ArchiveResponse,
    Member,
    archive_responses,
    lacks_descriptors,
)
from service.api.jobs.artifacts import require_files
from service.api.openapi.document import problems
from service.contract.states import ENDED, Action, JobState, Stage
from service.errors import ArtifactGoneError, ArtifactNotFoundError, WrongStateError
from service.settings import Settings
from service.store.jobs import queries
from service.store.tables.jobs import ArtifactRow, JobRow

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])

_FOLDER: Final = "model/"
_CARD: Final = "model/README.md"
"""`publish` writes it outside of the model's folder."""


@router.get(
    "/model.tar",
    summary="Download the finished model",
    response_class=Response,
    responses={
        **archive_responses("<job id>", "A sha256 of the files' names and contents, quoted."),
        304: {"description": "The client has it already (If-None-Match)."},
        **problems(401, 404, 409, 410, 422, 503),
    },
)
def get_model(
    principal: JobsRead,
    job_id: JobId,
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
) -> Response:
    """The artifacts under `model/` in one tar archive, built while it is sent; Content-Length is
    known. The same model gives the same bytes: files by name, with the job's creation as their
    time.

    404 when there is no model yet, 409 while a promoted checkpoint replaces it, 410 when it was
    removed to make room.
    """
    with database.read() as session:
        job = queries.get_job(session, principal.scope, job_id)
        rows = queries.artifacts_under(session, principal.scope, job_id, _FOLDER)
    require_files(job)
    members = _members(job, rows)
    etag = hashlib.sha256(
        json.dumps([job_id, *((row.name, row.sha256) for row, _ in members)]).encode()
    ).hexdigest()
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": f'"{etag}"'})
    archive = _open(job, [member for _, member in members], settings)
    return ArchiveResponse(archive, filename=f"{job_id}.tar", etag=etag)


def _members(job: JobRow, rows: Sequence[ArtifactRow]) -> list[tuple[ArtifactRow, Member]]:
    """The finished model's files. WrongStateError during a promotion, which registers its own files
    under the same names before it has finished. ArtifactNotFoundError without a model."""
    output = job.results.get(Stage.TRAIN, {}).get("output_dir")
    if not output:
        raise ArtifactNotFoundError(_why_none(job))
    own = [row for row in rows if row.path.startswith(f"{output}/") or row.name == _CARD]
    replaced = len(own) < len(rows) and (job.follow_up or {}).get("action") == Action.PROMOTE
    if replaced:
        raise WrongStateError(
            f"A checkpoint is being made the model of job {job.id}: download it when that has "
            f"succeeded. If it failed: `finetune retry {job.id}`.",
            state=job.state,
        )
    if not own:
        raise ArtifactNotFoundError(_why_none(job))
    return [(row, Member(row.name.removeprefix(_FOLDER), row.path, row.bytes)) for row in own]


def _why_none(job: JobRow) -> str:
    state = JobState(job.state)
    if job.spec.get("mode", "train") != "train":
        hint = "it does not train; what it made is under /artifacts"
    elif state in ENDED:
        hint = f"it {'was ' if state is JobState.CANCELLED else ''}{state} before it saved one. "
        hint += (
            f"`finetune retry {job.id}` continues it; `finetune promote` makes a checkpoint its "
        )
        hint += "model"
    else:
        hint = f"it is {state}; `finetune watch {job.id}` follows it to its end"
    return f"Job {job.id} has no finished model: {hint}."


def _open(job: JobRow, members: Sequence[Member], settings: Settings) -> Archive:
    try:
        modified = job.created_at.timestamp()
        return Archive(settings.workspace(job.id), job.id, members, modified)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        raise ArtifactGoneError(
            f"The files of the model of job {job.id} are no longer on this server as they were "
            f"registered. `finetune clone {job.id}` trains it again."
        ) from error
