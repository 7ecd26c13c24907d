"""Uploads in parts: rows, limits and states. The API stores the bytes.

`pending` takes parts. `assembling` has its parts checked and their order fixed: from then on a
repeated completion continues, whatever was killed. The other states are ends.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.errors import (
    TooManyOpenUploadsError,
    UploadNotPendingError,
    UploadPartsError,
    UploadSessionNotFoundError,
)
from service.store import removals
from service.store.database import db_now
from service.store.files import files
from service.store.projects import projects, quotas
from service.store.scope import Scope
from service.store.tables.base import new_id
from service.store.tables.files import FileRow
from service.store.tables.uploads import UploadPartRow, UploadRow

MOST_OPEN: Final = 64
"""Open uploads of a project."""
MOST_PARTS: Final = 1000
"""Of an upload."""
LARGEST_PART: Final = 64 * 1024**2
"""Bytes."""
OPEN_SECONDS: Final = 3600.0
_KEPT_SECONDS: Final = 86400.0
"""How long after its time an ended upload answers a repeated request."""


class State(StrEnum):
    PENDING = "pending"
    ASSEMBLING = "assembling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


_OPEN: Final = (State.PENDING, State.ASSEMBLING)


@dataclass(frozen=True)
class NewUpload:
    filename: str
    purpose: str
    bytes: int
    file_expires_after: int | None


@dataclass(frozen=True)
class Part:
    id: str
    bytes: int


def new_part_id() -> str:
    return new_id("part")


def folder(upload_id: str) -> str:
    """Of the upload's parts, relative to the home."""
    return f"uploads/{upload_id}"


def create(session: Session, project: str, new: NewUpload) -> UploadRow:
    """Raises TooManyOpenUploadsError, StorageQuotaError, ProjectArchivedError.

    The project's row is locked, so that of requests at the same time no more get through than may.
    Its storage is checked but not reserved: each part uses up its own bytes.
    """
    owner = quotas.locked_open(session, project)
    is_open = (
        UploadRow.project_id == project,
        UploadRow.state.in_(_OPEN),
        UploadRow.expires_at > db_now(),
    )
    if (session.scalar(select(func.count()).where(*is_open)) or 0) >= MOST_OPEN:
        raise TooManyOpenUploadsError(
            f"The project {owner.name} may have {MOST_OPEN} open uploads. Complete or cancel one."
        )
    quotas.require_room(session, project, new.bytes)
    row = UploadRow(
        id=new_id("upload"),
        project_id=project,
        filename=new.filename,
        purpose=new.purpose,
        bytes=new.bytes,
        file_expires_after=new.file_expires_after,
        state=State.PENDING,
        created_at=db_now(),
        expires_at=db_now(OPEN_SECONDS),
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def _locked(session: Session, scope: Scope, upload_id: str) -> UploadRow:
    """Ours until the transaction ends. Raises UploadSessionNotFoundError."""
    mine = scope.filter(UploadRow.project_id)
    query = select(UploadRow).where(UploadRow.id == upload_id, mine).with_for_update()
    row = session.scalars(query, execution_options={"populate_existing": True}).one_or_none()
    if row is None:
        raise UploadSessionNotFoundError(upload_id)
    return row


def project_of(session: Session, scope: Scope, upload_id: str) -> str:
    """The project that it belongs to. Raises UploadSessionNotFoundError."""
    mine = scope.filter(UploadRow.project_id)
    query = select(UploadRow.project_id).where(UploadRow.id == upload_id, mine)
    project = session.scalar(query)
    if project is None:
        raise UploadSessionNotFoundError(upload_id)
    return project


def _require(session: Session, row: UploadRow, *states: State) -> None:
    """Raises UploadNotPendingError unless it is in one of the states and has not expired."""
    state = row.state
    is_over = select(UploadRow.expires_at <= db_now()).where(UploadRow.id == row.id)
    if state in _OPEN and session.scalar(is_over):
        state = State.EXPIRED
    if state not in states:
        raise UploadNotPendingError(f"The upload {row.id} is {state}.", state=state)


# ---- parts --------------------------------------------------------------------------------------


def require_part(session: Session, scope: Scope, upload_id: str, size: int) -> UploadRow:
    """The upload, locked, if it takes one more part of this many bytes. Raises
    UploadSessionNotFoundError, UploadNotPendingError, UploadPartsError, StorageQuotaError,
    ProjectArchivedError."""
    row = _locked(session, scope, upload_id)
    _require(session, row, State.PENDING)
    projects.require_open(session, [row.project_id])
    count, received = session.execute(
        select(func.count(), func.coalesce(func.sum(UploadPartRow.bytes), 0)).where(
            UploadPartRow.upload_id == upload_id
        )
    ).one()
    if count >= MOST_PARTS:
        raise UploadPartsError(f"An upload may have at most {MOST_PARTS:,} parts.")
    # A part whose answer was lost is sent again.
    if received + size > 2 * row.bytes + LARGEST_PART:
        raise UploadPartsError(
            f"The upload was announced with {row.bytes:,} bytes and has received {received:,}."
        )
    quotas.require_room(session, row.project_id, size)
    return row


def add_part(
    session: Session, scope: Scope, upload_id: str, part_id: str, size: int
) -> UploadPartRow:
    """Raises what `require_part` raises."""
    require_part(session, scope, upload_id, size)
    row = UploadPartRow(id=part_id, upload_id=upload_id, bytes=size, created_at=db_now())
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


# ---- completion ---------------------------------------------------------------------------------


def begin_completion(
    session: Session, scope: Scope, upload_id: str, part_ids: list[str]
) -> tuple[UploadRow, list[Part]]:
    """The upload, and the parts of the file in their order; an upload that was completed with the
    same parts has none left. Raises UploadSessionNotFoundError, UploadNotPendingError,
    UploadPartsError."""
    row = _locked(session, scope, upload_id)
    _require(session, row, State.PENDING, State.ASSEMBLING, State.COMPLETED)
    if row.part_ids is not None and row.part_ids != part_ids:
        raise UploadNotPendingError(
            f"The completion of upload {row.id} has begun with other parts.", state=row.state
        )
    if row.state == State.COMPLETED:
        return row, []
    mine = select(UploadPartRow.id, UploadPartRow.bytes).where(UploadPartRow.upload_id == upload_id)
    sizes = {each.id: each.bytes for each in session.execute(mine)}
    if len(set(part_ids)) != len(part_ids):
        raise UploadPartsError("`part_ids` names a part more than once.")
    unknown = [part_id for part_id in part_ids if part_id not in sizes]
    if unknown:
        raise UploadPartsError(f"The upload has no part {unknown[0][:100]!r}.")
    total = sum(sizes[part_id] for part_id in part_ids)
    if total != row.bytes:
        raise UploadPartsError(
            f"The parts have {total:,} bytes together; the upload was announced with {row.bytes:,}."
        )
    return row, [Part(part_id, sizes[part_id]) for part_id in part_ids]


def fix_parts(
    session: Session, scope: Scope, upload_id: str, part_ids: list[str], sha256: str
) -> UploadRow:
    """Fix the parts: none can be added from now on. Raises UploadNotPendingError."""
    row = _locked(session, scope, upload_id)
    _require(session, row, State.PENDING)
    row.state, row.part_ids, row.sha256 = State.ASSEMBLING, part_ids, sha256
    row.file_id = files.new_id()
    session.flush()
    return row


def finish(session: Session, scope: Scope, upload_id: str) -> tuple[UploadRow, FileRow]:
    """Add the row of the file, whose bytes have its name already. Its parts counted as stored, so
    it needs no more room. Raises UploadNotPendingError if the upload was cancelled meanwhile."""
    row = _locked(session, scope, upload_id)
    if row.state != State.ASSEMBLING:
        raise UploadNotPendingError(f"The upload {row.id} is {row.state}.", state=row.state)
    assert row.file_id is not None
    assert row.sha256 is not None
    file = files.add(
        session,
        row.project_id,
        file_id=row.file_id,
        filename=row.filename,
        purpose=row.purpose,
        size=row.bytes,
        sha256=row.sha256,
        expires_after=row.file_expires_after,
    )
    _end(session, row, State.COMPLETED)
    return row, file


def file_of(session: Session, row: UploadRow) -> FileRow | None:
    """The file that a completed upload has become, unless it is deleted or expired."""
    if row.state != State.COMPLETED or row.file_id is None:
        return None
    return files.find(session, Scope(row.project_id), row.file_id)


# ---- ends ---------------------------------------------------------------------------------------


def cancel(session: Session, scope: Scope, upload_id: str) -> UploadRow:
    """Also of one that is being completed; cancelling twice changes nothing. Raises
    UploadSessionNotFoundError, UploadNotPendingError."""
    row = _locked(session, scope, upload_id)
    if row.state != State.CANCELLED:
        _require(session, row, *_OPEN)
        _end(session, row, State.CANCELLED)
    return row


def _end(session: Session, row: UploadRow, state: State) -> None:
    row.state = state
    session.execute(delete(UploadPartRow).where(UploadPartRow.upload_id == row.id))
    removals.schedule(session, [folder(row.id)])


def expired(session: Session, scope: Scope) -> list[str]:
    """Ids of the open uploads whose time is over."""
    is_over = (UploadRow.state.in_(_OPEN), UploadRow.expires_at <= db_now())
    query = select(UploadRow.id).where(*is_over, scope.filter(UploadRow.project_id))
    return list(session.scalars(query.order_by(UploadRow.expires_at)))


def expire(session: Session, scope: Scope, upload_id: str) -> str:
    """End an upload whose time is over; its folder, to remove after COMMIT."""
    mine = scope.filter(UploadRow.project_id)
    query = select(UploadRow).where(UploadRow.id == upload_id, UploadRow.state.in_(_OPEN), mine)
    row = session.scalars(query.with_for_update()).one_or_none()
    if row is not None:
        _end(session, row, State.EXPIRED)
    return folder(upload_id)


def forget(session: Session, scope: Scope) -> None:
    """Remove the rows of uploads that ended long ago."""
    ended_long_ago = (
        UploadRow.state.not_in(_OPEN),
        UploadRow.expires_at < db_now(-_KEPT_SECONDS),
    )
    mine = scope.filter(UploadRow.project_id)
    session.execute(delete(UploadRow).where(*ended_long_ago, mine))
