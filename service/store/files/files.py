"""Rows of uploaded files. The API stores the bytes."""

import re
import secrets
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Literal

from sqlalchemy import ColumnElement, String, cast, delete, select, update
from sqlalchemy.orm import Session

from service.contract.states import LIVE
from service.errors import DataGoneError, UploadInUseError, UploadNotFoundError
from service.store import database, removals
from service.store.database import db_now
from service.store.scope import Scope
from service.store.tables.files import FileRow
from service.store.tables.jobs import JobRow

_FILE_ID = re.compile(r"file-[A-Za-z0-9]{1,64}")
# SQLite takes 32,766 parameters in a statement.
_IDS_PER_QUERY = 1000
_ROWLESS_SECONDS = 86400.0


def new_id() -> str:
    """`file-` and hex that sorts by time: 48 bits of milliseconds, 80 random ones."""
    return f"file-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def is_id(value: str) -> bool:
    return _FILE_ID.fullmatch(value) is not None


def announce(session: Session, file_id: str) -> None:
    """To be committed before the file gets its name: without a row within a day it is removed."""
    removals.schedule(session, [_path(file_id)], after_seconds=_ROWLESS_SECONDS)


def _path(file_id: str) -> str:
    """Relative to the home."""
    return f"files/{file_id}"


def add(
    session: Session,
    project_id: str,
    *,
    file_id: str,
    filename: str,
    purpose: str,
    size: int,
    sha256: str,
    expires_after: int | None = None,
) -> FileRow:
    """`expires_after`: seconds after its creation."""
    row = FileRow(
        id=file_id,
        project_id=project_id,
        filename=filename,
        purpose=purpose,
        bytes=size,
        sha256=sha256,
        created_at=db_now(),
    )
    session.add(row)
    removals.forget(session, _path(file_id))
    session.flush()
    session.refresh(row)
    if expires_after is not None:
        row.expires_at = row.created_at + timedelta(seconds=expires_after)
        session.flush()
    return row


def find(session: Session, scope: Scope, file_id: str) -> FileRow | None:
    """None also for a file that has expired."""
    if not is_id(file_id):
        return None
    mine = scope.filter(FileRow.project_id)
    query = select(FileRow).where(FileRow.id == file_id, mine, _unexpired())
    return session.scalars(query).one_or_none()


def get(session: Session, scope: Scope, file_id: str) -> FileRow:
    """Raises UploadNotFoundError, also for a file that has expired."""
    row = find(session, scope, file_id)
    if row is None:
        raise _not_found(file_id)
    return row


def _unexpired() -> ColumnElement[bool]:
    return FileRow.expires_at.is_(None) | (FileRow.expires_at > db_now())


def _not_found(file_id: str) -> UploadNotFoundError:
    return UploadNotFoundError(f"There is no file {file_id[:100]!r}.")


def page(
    session: Session,
    scope: Scope,
    *,
    after: str | None,
    limit: int,
    order: Literal["asc", "desc"],
    purpose: str | None,
    id_prefix: str | None = None,
) -> tuple[list[FileRow], bool]:
    """Up to `limit` rows by time of upload beyond the id `after`, and whether there are more."""
    statement = select(FileRow).where(scope.filter(FileRow.project_id), _unexpired())
    if purpose is not None:
        statement = statement.where(FileRow.purpose == purpose)
    if id_prefix is not None:
        # Ids are hex: no digit sorts after f.
        statement = statement.where(FileRow.id >= id_prefix, FileRow.id < id_prefix + "g")
    is_rising = order == "asc"
    if after is not None:
        statement = statement.where(FileRow.id > after if is_rising else FileRow.id < after)
    statement = statement.order_by(FileRow.id if is_rising else FileRow.id.desc())
    return database.page(session, statement, limit)


def existing(session: Session, scope: Scope, ids: Iterable[str]) -> set[str]:
    """Those of `ids` that exist and have not expired."""
    wanted = sorted(set(ids))
    found: set[str] = set()
    for start in range(0, len(wanted), _IDS_PER_QUERY):
        part = wanted[start : start + _IDS_PER_QUERY]
        mine = scope.filter(FileRow.project_id)
        known = select(FileRow.id).where(FileRow.id.in_(part), mine, _unexpired())
        found.update(session.scalars(known))
    return found


def use(session: Session, scope: Scope, ids: Iterable[str]) -> None:
    """Note that a job needs these files from now on; DataGoneError names those that do not exist.

    Until the transaction ends none of them can be removed, and after it the job protects them.
    """
    wanted = sorted(set(ids))
    for start in range(0, len(wanted), _IDS_PER_QUERY):
        part = wanted[start : start + _IDS_PER_QUERY]
        # Locked in one order by all, or two of them might wait for each other.
        mine = scope.filter(FileRow.project_id)
        locked = select(FileRow.id).where(FileRow.id.in_(part), mine, _unexpired())
        found = set(session.scalars(locked.order_by(FileRow.id).with_for_update()))
        missing = [file_id for file_id in part if file_id not in found]
        if missing:
            raise DataGoneError(
                f"No uploaded file has the id {', '.join(missing)}.", missing=missing
            )
        session.execute(
            update(FileRow).where(FileRow.id.in_(part)).values(last_used_at=db_now()),
            execution_options={"synchronize_session": False},
        )


def remove(session: Session, scope: Scope, file_id: str) -> str:
    """Delete the file's row; returns its path, relative to the home, to remove after COMMIT.

    Raises UploadNotFoundError, or UploadInUseError while a job that has not ended names it.
    """
    row = None
    if is_id(file_id):
        row = _locked(session, file_id, scope.filter(FileRow.project_id), _unexpired())
    if row is None:
        raise _not_found(file_id)
    job_id = _job_that_needs(session, Scope(row.project_id), file_id)
    if job_id is not None:
        raise UploadInUseError(
            f"Job {job_id} has not ended and needs the file; cancel it or wait.", job_id=job_id
        )
    return _remove(session, file_id)


def expired(session: Session, scope: Scope) -> list[str]:
    """Ids of the files that have expired, the longest expired first."""
    mine = scope.filter(FileRow.project_id)
    query = select(FileRow.id).where(FileRow.expires_at <= db_now(), mine)
    return list(session.scalars(query.order_by(FileRow.expires_at, FileRow.id)))


def remove_expired(session: Session, scope: Scope, file_id: str) -> str | None:
    """As `remove`. None while a job that has not ended names the file: the job keeps it."""
    row = _locked(
        session, file_id, scope.filter(FileRow.project_id), FileRow.expires_at <= db_now()
    )
    if row is None or _job_that_needs(session, Scope(row.project_id), file_id) is not None:
        return None
    return _remove(session, file_id)


def _locked(session: Session, file_id: str, *where: ColumnElement[bool]) -> FileRow | None:
    """Locked before the jobs are searched: a request that makes a job with this file comes earlier
    and is seen, or later and does not find the file."""
    query = select(FileRow).where(FileRow.id == file_id, *where)
    return session.scalars(query.with_for_update()).one_or_none()


def _remove(session: Session, file_id: str) -> str:
    session.execute(delete(FileRow).where(FileRow.id == file_id))
    removals.schedule(session, [_path(file_id)])
    return _path(file_id)


def _job_that_needs(session: Session, scope: Scope, file_id: str) -> str | None:
    # The spec is JSON text in both databases and an id is letters and digits between quotes.
    return session.scalar(
        select(JobRow.id)
        .where(
            JobRow.state.in_(LIVE),
            scope.filter(JobRow.project_id),
            cast(JobRow.spec, String).contains(f'"{file_id}"', autoescape=True),
        )
        .limit(1)
    )
