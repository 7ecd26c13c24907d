"""Uploaded data sets, in the shapes of the OpenAI files API."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from service.api.faults.names import nearest
from service.api.faults.redaction import shown
from service.api.files import upload, upload_locks
from service.api.http.dependencies import DatabaseDep, SettingsDep
from service.api.http.download import DOWNLOAD_RESPONSES, send_file, send_open
from service.api.http.limits import UploadSlots
from service.api.http.principal import FilesRead, FilesWrite
from service.api.openapi.document import problems
from service.api.problems.errors import InvalidRequestError, parameter_fault
from service.api.problems.face import DerivedFiles, faces_of
from service.api.schemas.files import (
    ExpiresAfter,
    FileDeleted,
    FileList,
    FileObject,
    ListedPurpose,
    Purpose,
)
from service.api.schemas.problems import Fault
from service.contract.fields import patterns
from service.errors import ResultFileError
from service.jobs import removal
from service.jobs.disk_space import space, with_reserve
from service.settings import Settings
from service.store.database import Database
from service.store.files import files
from service.store.projects import audit, projects, quotas
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
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": 3600,
                            "maximum": 30 * 86400,
                        },
                    },
                    "additionalProperties": False,
                },
                "encoding": {"file": {"contentType": "application/octet-stream"}},
            }
        },
    }
}
_EXPIRY: Final = {"expires_after[anchor]": "anchor", "expires_after[seconds]": "seconds"}
"""Fields of the form, as OpenAI's clients name them, and those of `ExpiresAfter`."""
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
    principal: FilesWrite, request: Request, settings: SettingsDep, database: DatabaseDep
) -> FileObject:
    """The file is streamed to disk and hashed. Formats: see `dataset.format` of a job."""
    await to_thread.run_sync(_require_room, request, database, principal.project)
    file_id = files.new_id()
    temporary = settings.files_dir / f"{upload_locks.PREFIX}{file_id}"
    slots: UploadSlots = request.app.state.upload_slots
    with slots.take():
        received = await upload.receive(
            request, temporary, settings.max_upload_bytes, partial(space, settings)
        )
        return await to_thread.run_sync(
            _store, database, settings, principal.project, file_id, received
        )


def _require_room(request: Request, database: Database, project_id: str) -> None:
    """Refuse a request whose announced length is too large, before its body arrives."""
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
    """The file gets its name, then its row. If it got no row in the end, or that is unknown because
    COMMIT got no answer, SQL decides about the file, a day later."""
    try:
        fields = _fields(received.fields)
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
                purpose=fields.purpose,
                size=received.size,
                sha256=received.sha256,
                expires_after=fields.expires_after,
            )
    except BaseException:
        upload.remove_if_there(received.path)
        raise
    return FileObject.from_row(row)


@dataclass(frozen=True)
class _Fields:
    purpose: str
    expires_after: int | None
    """Seconds after the file's creation."""


def _fields(given: dict[str, str]) -> _Fields:
    """The form without the file. Raises InvalidRequestError with every fault."""
    faults = [
        Fault(path=f"body.{name}", code="unknown_field", message="unknown field")
        for name in given
        if name not in ("purpose", *_EXPIRY)
    ]
    faults += _purpose_faults(given.get("purpose"))
    expires_after = None
    if any(field in given for field in _EXPIRY):
        values = {name: given[field] for field, name in _EXPIRY.items() if field in given}
        try:
            expires_after = ExpiresAfter.model_validate(values).seconds
        except ValidationError as error:
            for one in error.errors():
                path = ("body", f"expires_after[{one['loc'][0]}]")
                faults.append(parameter_fault({**one, "loc": path}))
    if faults:
        raise InvalidRequestError(faults)
    return _Fields(given["purpose"], expires_after)


def _purpose_faults(purpose: str | None) -> list[Fault]:
    purposes = list(get_args(Purpose))
    if purpose is None:
        message = "required, but not given"
        return [Fault(path="body.purpose", code="missing_field", message=message, allowed=purposes)]
    if purpose in purposes:
        return []
    return [
        Fault(
            path="body.purpose",
            code="invalid_value",
            message="must be one of the allowed values",
            given=shown("purpose", purpose),
            allowed=purposes,
            suggestion=nearest(purpose, purposes),
        )
    ]


@router.get("", summary="List the files", responses=problems(401, 422, 503))
def list_files(
    principal: FilesRead,
    database: DatabaseDep,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    order: Literal["asc", "desc"] = "desc",
    purpose: ListedPurpose | None = None,
    id_prefix: Annotated[
        str | None,
        Query(pattern=patterns.FILE_ID_PREFIX, description="Files whose ids begin with it."),
    ] = None,
) -> FileList:
    """Sorted by upload time, the newest first unless `order` is `asc`."""
    with database.read() as session:
        rows, has_more = files.page(
            session,
            principal.scope,
            after=after,
            limit=limit,
            order=order,
            purpose=purpose,
            id_prefix=id_prefix,
        )
    return FileList.from_items([FileObject.from_row(row) for row in rows], has_more=has_more)


@router.get("/{file_id}", summary="One file", responses=problems(401, 404, 422, 503))
def get_file(
    principal: FilesRead, file_id: str, request: Request, database: DatabaseDep
) -> FileObject:
    """Its name, size and hash."""
    derived = _derived(request, file_id)
    with database.read() as session:
        if derived is None:
            return FileObject.from_row(files.get(session, principal.scope, file_id))
        made = derived.files.make(session, principal.scope, derived.job_id)
    made.content.close()
    return made.about


@router.get(
    "/{file_id}/content",
    summary="Download a file",
    response_class=Response,
    responses={**DOWNLOAD_RESPONSES, **problems(401, 404, 416, 422, 503)},
)
def get_file_content(
    principal: FilesRead,
    file_id: str,
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
) -> Response:
    """Streamed; takes Range, If-Range and If-None-Match."""
    derived = _derived(request, file_id)
    with database.read() as session:
        if derived is not None:
            made = derived.files.make(session, principal.scope, derived.job_id)
            return send_open(request, made.content, made.about.filename, made.about.sha256)
        row = files.get(session, principal.scope, file_id)
    return send_file(request, settings.files_dir, row.id, row.filename, row.sha256)


@router.delete("/{file_id}", summary="Delete a file", responses=problems(401, 404, 409, 422, 503))
def delete_file(
    principal: FilesWrite,
    file_id: str,
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
) -> FileDeleted:
    """Refused with 409 while a job that has not ended needs the file, and for the results file of a
    job, which is deleted with it."""
    if (derived := _derived(request, file_id)) is not None:
        with database.read() as session:
            derived.files.require(session, principal.scope, derived.job_id)
        raise ResultFileError(f"Delete the job {derived.job_id} instead.", job_id=derived.job_id)
    with_reserve(settings, lambda: _remove(database, settings, principal.scope, file_id))
    return FileDeleted(id=file_id)


class _Derived(NamedTuple):
    files: DerivedFiles
    job_id: str


def _derived(request: Request, file_id: str) -> _Derived | None:
    """Where a face makes this file of a job's rows; None for an uploaded one."""
    for face in faces_of(request.scope):
        if (job_id := face.files.job_of(file_id)) is not None:
            return _Derived(face.files, job_id)
    return None


def _remove(database: Database, settings: Settings, scope: Scope, file_id: str) -> None:
    with database.write() as session:
        path = files.remove(session, scope, file_id)
    removal.remove_paths(database, settings.home, [path])
