"""Uploaded data sets, in the shapes of the OpenAI files API."""

from functools import partial
from typing import Annotated, Any, Final, Literal, get_args

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from service.api import leftovers, upload
from service.api.dependencies import DatabaseDep, SettingsDep
from service.api.download import DOWNLOAD_RESPONSES, send_file
from service.api.errors import InvalidRequestError
from service.api.faults.names import nearest
from service.api.limits import UploadSlots
from service.api.openapi import problems
from service.api.redaction import shown
from service.api.schemas.files import FileDeleted, FileList, FileObject, Purpose
from service.api.schemas.problems import Fault
from service.api.visitor import FilesRead, FilesWrite
from service.contract import patterns
from service.jobs import removal
from service.jobs.disk_space import space, with_reserve
from service.settings import Settings
from service.store import audit, files, projects, quotas
from service.store.database import Database
from service.store.scope import Scope

router = APIRouter(prefix="/v1/files", tags=["files"])

_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": list(get_args(Purpose))},
                    },
                    "additionalProperties": False,
                },
                "encoding": {"file": {"contentType": "application/octet-stream"}},
            }
        },
    }
}
After = Annotated[
    str | None,
    Query(pattern=patterns.FILE_ID, description="The last id of the previous page."),
]


@router.post(
    "",
    summary="Upload a data set",
    openapi_extra=_FORM,
    responses=problems(400, 401, 413, 415, 422, 429, 503, 507),
)
async def create_file(
    visitor: FilesWrite, request: Request, settings: SettingsDep, database: DatabaseDep
) -> FileObject:
    """The file is streamed to disk and hashed. Formats: see `dataset.format` of a job."""
    await to_thread.run_sync(_require_room, request, database, visitor.project)
    file_id = files.new_id()
    temporary = settings.files_dir / f"{leftovers.PREFIX}{file_id}"
    slots: UploadSlots = request.app.state.upload_slots
    with slots.take():
        received = await upload.receive(
            request, temporary, settings.max_upload_bytes, partial(space, settings)
        )
        return await to_thread.run_sync(
            _store, database, settings, visitor.project, file_id, received
        )


def _require_room(request: Request, database: Database, project_id: str) -> None:
    """Refuse what is announced to be too large before it arrives."""
    announced = request.headers.get("content-length", "0")
    size = int(announced) if announced.isdigit() else 0
    with database.read() as session:
        quotas.require_room(session, project_id, max(0, size - upload.FORM_BYTES))


def _store(
    database: Database,
    settings: Settings,
    project_id: str,
    file_id: str,
    received: upload.Upload,
) -> FileObject:
    """The file gets its name, then its row. Where there is none in the end, or nobody knows because
    COMMIT got no answer, SQL decides about the file, a day later."""
    try:
        purpose = _purpose(received.fields)
        with database.write(audited=False) as session:
            projects.require_open(session, [project_id])
            quotas.require_room(session, project_id, received.size)
            files.announce(session, file_id)
        upload.commit(received.path, settings.files_dir / file_id)
        audit.about(file_id)
        with database.write() as session:
            quotas.require_room(session, project_id, received.size)
            row = files.add(
                session,
                project_id,
                file_id=file_id,
                filename=received.filename,
                purpose=purpose,
                size=received.size,
                sha256=received.sha256,
            )
    except BaseException:
        upload.remove_if_there(received.path)
        raise
    return FileObject.of(row)


def _purpose(fields: dict[str, str]) -> str:
    purposes = get_args(Purpose)
    faults = [
        Fault(path=f"body.{name}", code="unknown_field", message="unknown field")
        for name in fields
        if name != "purpose"
    ]
    purpose = fields.get("purpose")
    if purpose is None:
        faults.append(
            Fault(
                path="body.purpose",
                code="missing_field",
                message="required, but not given",
                allowed=list(purposes),
            )
        )
    elif purpose not in purposes:
        faults.append(
            Fault(
                path="body.purpose",
                code="invalid_value",
                message="must be one of the allowed values",
                given=shown("purpose", purpose),
                allowed=list(purposes),
                suggestion=nearest(purpose, purposes),
            )
        )
    if faults:
        raise InvalidRequestError(faults)
    return str(purpose)


@router.get("", summary="List the files", responses=problems(401, 422, 503))
def list_files(
    visitor: FilesRead,
    database: DatabaseDep,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    order: Literal["asc", "desc"] = "desc",
    purpose: Purpose | None = None,
    id_prefix: Annotated[
        str | None,
        Query(pattern=patterns.FILE_ID_PREFIX, description="Files whose ids begin with it."),
    ] = None,
) -> FileList:
    """Sorted by upload time, the newest first unless `order` is `asc`."""
    with database.read() as session:
        rows, has_more = files.page(
            session,
            visitor.scope,
            after=after,
            limit=limit,
            order=order,
            purpose=purpose,
            id_prefix=id_prefix,
        )
    return FileList.of(rows, has_more=has_more)


@router.get("/{file_id}", summary="One file", responses=problems(401, 404, 422, 503))
def get_file(visitor: FilesRead, file_id: str, database: DatabaseDep) -> FileObject:
    """Its name, size and hash."""
    with database.read() as session:
        return FileObject.of(files.get(session, visitor.scope, file_id))


@router.get(
    "/{file_id}/content",
    summary="Download a file",
    response_class=Response,
    responses={**DOWNLOAD_RESPONSES, **problems(401, 404, 416, 422, 503)},
)
def get_file_content(
    visitor: FilesRead, file_id: str, request: Request, database: DatabaseDep, settings: SettingsDep
) -> Response:
    """Streamed; takes Range, If-Range and If-None-Match."""
    with database.read() as session:
        row = files.get(session, visitor.scope, file_id)
    return send_file(request, settings.files_dir, row.id, row.filename, row.sha256)


@router.delete("/{file_id}", summary="Delete a file", responses=problems(401, 404, 409, 422, 503))
def delete_file(
    visitor: FilesWrite, file_id: str, database: DatabaseDep, settings: SettingsDep
) -> FileDeleted:
    """Refused with 409 while a job that has not ended needs the file."""
    with_reserve(settings, lambda: _remove(database, settings, visitor.scope, file_id))
    return FileDeleted(id=file_id)


def _remove(database: Database, settings: Settings, scope: Scope, file_id: str) -> None:
    with database.write() as session:
        path = files.remove(session, scope, file_id)
    removal.remove_paths(database, settings.home, [path])
