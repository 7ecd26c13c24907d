"""The files that a job has written."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response

from service.api.http.dependencies import DatabaseDep, JobId, SettingsDep
from service.api.http.download import DOWNLOAD_RESPONSES, send_file
from service.api.http.principal import JobsRead
from service.api.openapi.document import problems
from service.api.schemas.history import ArtifactPage
from service.api.schemas.jobs import Artifact
from service.api.schemas.rows import model_from_row
from service.contract.fields import patterns
from service.errors import ArtifactGoneError
from service.store.jobs import queries
from service.store.tables.jobs import ArtifactRow, JobRow

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["jobs"])


def artifact_of(row: ArtifactRow) -> Artifact:
    url = f"/v1/jobs/{row.job_id}/artifacts/{quote(row.name)}"
    return model_from_row(Artifact, row, url=url)


def require_files(job: JobRow) -> None:
    """Raises ArtifactGoneError if they were removed to make room."""
    if job.workspace_pruned_at is not None:
        raise ArtifactGoneError(
            f"The files of job {job.id} were removed on {job.workspace_pruned_at:%Y-%m-%d} to make "
            "room (FINETUNE_RETENTION_WORKSPACE_…); its run in MLflow may still hold them."
        )


@router.get("", summary="List a job's artifacts", responses=problems(401, 404, 422, 503))
def list_artifacts(
    principal: JobsRead,
    job_id: JobId,
    database: DatabaseDep,
    after: Annotated[
        str | None,
        Query(
            max_length=500,
            pattern=patterns.NO_NUL,
            description="The last name of the previous page.",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> ArtifactPage:
    """By name: predictions, the finished model's files, the model card."""
    with database.read() as session:
        queries.job_exists(session, principal.scope, job_id)
        rows, has_more = queries.artifacts(
            session, principal.scope, job_id, after=after, limit=limit
        )
    return ArtifactPage(data=[artifact_of(row) for row in rows], has_more=has_more)


@router.get(
    "/{path:path}",
    summary="Download an artifact",
    response_class=Response,
    responses={**DOWNLOAD_RESPONSES, **problems(401, 404, 410, 416, 422, 503)},
)
def get_artifact(
    principal: JobsRead,
    job_id: JobId,
    path: Annotated[str, Path(description="Its `name`.", examples=["predictions.json"])],
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
) -> Response:
    """Streamed; takes Range, If-Range and If-None-Match. 410 when it was removed to make room."""
    with database.read() as session:
        row = queries.artifact(session, principal.scope, job_id, path)
        job = queries.get_job(session, principal.scope, job_id)
    require_files(job)
    return send_file(request, settings.workspace(job_id), row.path, row.name, row.sha256)
