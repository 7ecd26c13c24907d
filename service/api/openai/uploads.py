"""Uploads in parts: for files that are too large for one request."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from anyio import sleep, to_thread
from fastapi import APIRouter, Depends, Request

from service.api.files import upload, upload_locks
from service.api.http.dependencies import DatabaseDep, SettingsDep, path_id
from service.api.http.limits import UploadSlots
from service.api.http.principal import FilesWrite
from service.api.openai import assembly
from service.api.openapi.document import problems
from service.api.problems.errors import BodyTooLargeError, InvalidRequestError
from service.api.schemas.problems import Fault
from service.api.schemas.uploads import NewUpload, Upload, UploadCompletion, UploadPart
from service.contract.fields import patterns
from service.errors import DomainError, UploadNotPendingError, UploadSessionNotFoundError
from service.jobs import removal
from service.jobs.disk_space import space, with_reserve
from service.settings import Settings
from service.store.database import Database
from service.store.files import uploads
from service.store.projects import audit, projects
from service.store.scope import Scope
from service.system import locked_folder
from service.system.durable_files import sync_folder

router = APIRouter(prefix="/v1/uploads", tags=["files"])

_PAUSE: Final = 0.1
_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                    "additionalProperties": False,
                },
                "encoding": {"data": {"contentType": "application/octet-stream"}},
            }
        },
    }
}


UploadId = Annotated[
    str, Depends(path_id("upload", patterns.UPLOAD_ID, UploadSessionNotFoundError))
]


@router.post(
    "", summary="Begin an upload in parts", responses=problems(400, 401, 409, 413, 422, 429, 503)
)
def create_upload(
    principal: FilesWrite, new: NewUpload, database: DatabaseDep, settings: SettingsDep
) -> Upload:
    """It takes parts for an hour. A project may have 64 open ones."""
    if new.bytes > settings.max_upload_bytes:
        raise BodyTooLargeError(f"A file may have at most {settings.max_upload_bytes} bytes.")
    seconds = None if new.expires_after is None else new.expires_after.seconds
    with database.write() as session:
        wanted = uploads.NewUpload(new.filename, new.purpose, new.bytes, seconds)
        row = uploads.create(session, principal.project, wanted)
        audit.about(row.id)
    # After COMMIT: a folder without a row would never be removed.
    (settings.uploads_dir / row.id).mkdir(parents=True)
    sync_folder(settings.uploads_dir)
    return Upload.from_row(row)


@router.post(
    "/{upload_id}/parts",
    summary="Upload a part",
    openapi_extra=_FORM,
    responses=problems(400, 401, 404, 409, 413, 415, 422, 429, 503, 507),
)
async def add_part(
    principal: FilesWrite,
    upload_id: UploadId,
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
) -> UploadPart:
    """Up to 64 MiB, in any order and several at once; `complete` names the order."""
    scope = principal.scope
    size = await to_thread.run_sync(_require_part, database, scope, upload_id, 0)
    part_id = uploads.new_part_id()
    slots: UploadSlots = request.app.state.upload_slots
    with slots.take():
        received = await upload.receive(
            request,
            settings.uploads_dir / f"{upload_locks.PREFIX}{part_id}",
            min(size, uploads.LARGEST_PART),
            partial(space, settings),
            name="data",
            has_filename=False,
        )
        target = settings.uploads_dir / upload_id / part_id
        return await to_thread.run_sync(_keep, database, scope, upload_id, received, target)


def _require_part(database: Database, scope: Scope, upload_id: str, size: int) -> int:
    """The bytes of the whole file."""
    with database.write(audited=False) as session:
        return uploads.require_part(session, scope, upload_id, size).bytes


def _keep(
    database: Database, scope: Scope, upload_id: str, received: upload.Upload, target: Path
) -> UploadPart:
    """The part gets its name, then its row. Without a row it goes with the upload's folder."""
    try:
        _require_data_alone(received)
        _require_part(database, scope, upload_id, received.size)
        upload.commit(received.path, target)
    except BaseException as error:
        upload.remove_if_there(received.path)
        if isinstance(error, FileNotFoundError):
            raise UploadNotPendingError("Its parts were removed: begin another.") from error
        raise
    try:
        audit.about(target.name)
        with database.write() as session:
            row = uploads.add_part(session, scope, upload_id, target.name, received.size)
    except DomainError:
        upload.remove_if_there(target)
        raise
    return UploadPart.from_row(row)


def _require_data_alone(received: upload.Upload) -> None:
    faults = [
        Fault(path=f"body.{name}", code="unknown_field", message="unknown field")
        for name in received.fields
    ]
    if not received.size:
        faults.append(Fault(path="body.data", code="invalid_value", message="must not be empty"))
    if faults:
        raise InvalidRequestError(faults)


@router.post(
    "/{upload_id}/complete",
    summary="Make a file of the parts",
    responses=problems(400, 401, 404, 409, 413, 422, 429, 503, 507),
)
async def complete_upload(
    principal: FilesWrite,
    upload_id: UploadId,
    completion: UploadCompletion,
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
) -> Upload:
    """The parts must have as many bytes as announced. Repeated with the same parts, also after a
    failure, it continues or answers with the same file."""
    slots: UploadSlots = request.app.state.upload_slots
    with slots.take():
        await to_thread.run_sync(_require_visible, database, principal.scope, upload_id)
        async with _locked(settings.uploads_dir / upload_id):
            row, file = await to_thread.run_sync(
                assembly.complete,
                database,
                settings,
                principal.scope,
                upload_id,
                completion.part_ids,
                completion.md5,
            )
    return Upload.from_row(row, file)


def _require_visible(database: Database, scope: Scope, upload_id: str) -> None:
    """Check before waiting for the lock. Raises UploadSessionNotFoundError,
    ProjectArchivedError."""
    with database.read() as session:
        project = uploads.project_of(session, scope, upload_id)
        projects.require_open(session, [project])


@asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[None]:
    """A repeated completion waits for the first one, without blocking a thread."""
    while True:
        with locked_folder.if_free(folder) as is_free:
            if is_free:
                yield
                return
        await sleep(_PAUSE)


@router.post(
    "/{upload_id}/cancel",
    summary="Cancel an upload in parts",
    responses=problems(401, 404, 409, 422, 503),
)
def cancel_upload(
    principal: FilesWrite, upload_id: UploadId, database: DatabaseDep, settings: SettingsDep
) -> Upload:
    """Its parts are removed. Cancelling it again changes nothing."""
    return with_reserve(settings, lambda: _cancel(database, settings, principal.scope, upload_id))


def _cancel(database: Database, settings: Settings, scope: Scope, upload_id: str) -> Upload:
    with database.write() as session:
        row = uploads.cancel(session, scope, upload_id)
    removal.remove_paths(database, settings.home, [uploads.folder(upload_id)])
    return Upload.from_row(row)
