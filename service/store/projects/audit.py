"""The audit log: who did what to what, when and from where. Rows are only ever added.

A request's entry is written in the transaction that makes its change, so neither exists without the
other: `Database.write` calls `record` before it commits. Commands that change the database
themselves call `write`. Only refusals have a transaction of their own.
"""

import secrets
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import delete, event, select
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session

from service.store import database
from service.store.database import db_now
from service.store.scope import Scope
from service.store.tables.jobs import JobRow
from service.store.tables.searches import SearchRow
from service.store.tables.teams import AuditRow

KEPT_AT_LEAST_DAYS: Final = 30
"""The database refuses to remove younger rows."""
_FORGOTTEN_AT_ONCE: Final = 10_000
_INSERT: Final = insert_into(AuditRow.__table__)  # type: ignore[arg-type]
_LONGEST: Final = {"action": 64, "target": 200, "client": 64, "code": 64, "key_name": 200}


@dataclass
class Entry:
    """Who acts, and what they do; `is_written` once it is in the log."""

    action: str
    target: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    role: str | None = None
    client: str | None = None
    request_id: str | None = None
    is_written: bool = False

    def mark_written(self) -> None:
        self.is_written = True


_CURRENT: Final[ContextVar[Entry | None]] = ContextVar("audit_entry", default=None)


def current() -> Entry | None:
    """The entry of the request that this thread or task is working for."""
    return _CURRENT.get()


def begin(entry: Entry) -> None:
    """From now on this task, and the threads that it starts, act for this request."""
    _CURRENT.set(entry)


def about(target: str) -> None:
    """Name what the present request has made, where its path does not."""
    entry = current()
    if entry is not None:
        entry.target = target


def inside(project_id: str) -> None:
    """Name the project whose part is changed: an operator's key belongs to none."""
    entry = current()
    if entry is not None:
        entry.project_id = project_id


def record(session: Session) -> None:
    """Write the present entry with the transaction that is about to commit."""
    entry = current()
    if entry is None or entry.is_written:
        return
    if entry.project_id is None and entry.target is not None:
        # An operator acts on jobs and searches of all projects.
        for prefix, table in (("job-", JobRow), ("search-", SearchRow)):
            if entry.target.startswith(prefix):
                owner = select(table.project_id).where(table.id == entry.target)
                entry.project_id = session.scalar(owner)
    write(session, entry)
    # Not earlier: when COMMIT fails, the request may try once more (service/jobs/disk_space.py).
    event.listen(session, "after_commit", lambda _: entry.mark_written(), once=True)


def write(session: Session, entry: Entry) -> None:
    """Write an entry with the transaction of its change."""
    write_all(session, [entry], _now(session))


def write_all(session: Session, entries: Sequence[Entry | None], at: datetime) -> None:
    """Write entries in one statement, without the ORM: part of every POST."""
    rows = [_row(entry, at, "done", None) for entry in entries if entry is not None]
    if rows:
        session.connection().execute(_INSERT, rows)


def refuse(session: Session, entry: Entry, code: str | None) -> None:
    """Write that a request was refused, without its target: that is the client's text."""
    row = _row(replace(entry, target=None), _now(session), "refused", code)
    session.connection().execute(_INSERT, [row])


def _now(session: Session) -> datetime:
    now: datetime = session.connection().execute(select(db_now())).scalar_one()
    return now


def _row(
    entry: Entry, at: datetime, outcome: Literal["done", "refused"], code: str | None
) -> dict[str, str | datetime | None]:
    row: dict[str, str | datetime | None] = {
        "id": f"audit-{time.time_ns():016x}{secrets.token_hex(6)}",
        "at": at,
        "project_id": entry.project_id,
        "key_id": entry.key_id,
        "key_name": entry.key_name,
        "role": entry.role,
        "action": entry.action,
        "target": entry.target,
        "outcome": outcome,
        "code": code,
        "client": entry.client,
        "request_id": entry.request_id,
    }
    return {name: _storable(name, value) for name, value in row.items()}


def _storable(name: str, value: str | datetime | None) -> str | datetime | None:
    """Cut to the column; Postgres refuses a NUL in any text."""
    if not isinstance(value, str):
        return value
    return value.replace("\x00", "")[: _LONGEST.get(name, len(value))]


@dataclass(frozen=True)
class Wanted:
    """None: any."""

    action: str | None = None
    target: str | None = None
    key_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def page(
    session: Session, scope: Scope, wanted: Wanted, *, after: str | None, limit: int
) -> tuple[list[AuditRow], bool]:
    """The newest first, beyond the id `after`; and whether there are more."""
    query = select(AuditRow).where(scope.filter(AuditRow.project_id))
    for column, value in (
        (AuditRow.action, wanted.action),
        (AuditRow.target, wanted.target),
        (AuditRow.key_id, wanted.key_id),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(AuditRow.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(AuditRow.at < wanted.until)
    if after is not None:
        query = query.where(AuditRow.id < after)
    return database.page(session, query.order_by(AuditRow.id.desc()), limit)


def forget(session: Session, days: int) -> int:
    """Remove what is older, a part at a time; how many rows."""
    kept = max(days, KEPT_AT_LEAST_DAYS) * 86400 + 60
    # The first ids are the oldest rows. No index has the times, and a sweep must not read the log.
    oldest = select(AuditRow.id).order_by(AuditRow.id).limit(_FORGOTTEN_AT_ONCE)
    statement = delete(AuditRow).where(AuditRow.id.in_(oldest), AuditRow.at < db_now(-kept))
    return len(session.scalars(statement.returning(AuditRow.id)).all())
