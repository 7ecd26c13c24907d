"""API keys: shown once when they are made, stored as hashes, compared in constant time."""

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, or_, select, update
from sqlalchemy.orm import Session

from service.contract.roles import Role
from service.store.database import clock, db_now
from service.store.scope import EVERYTHING, Scope
from service.store.tables.projects import ApiKeyRow, MemberRow, ProjectRow, SessionRow

_HOLDERS: Final = (
    select(
        ApiKeyRow.id,
        ApiKeyRow.name,
        ApiKeyRow.sha256,
        ApiKeyRow.project_id,
        ApiKeyRow.role,
        MemberRow.role.label("member_role"),
        ApiKeyRow.member_id,
        ApiKeyRow.scopes,
        ApiKeyRow.expires_at,
        (ApiKeyRow.expires_at <= db_now()).label("is_expired"),
        ProjectRow.max_requests_per_second,
    )
    .outerjoin(ProjectRow, ProjectRow.id == ApiKeyRow.project_id)
    .outerjoin(MemberRow, MemberRow.id == ApiKeyRow.member_id)
    .where(ApiKeyRow.revoked_at.is_(None), MemberRow.removed_at.is_(None))
)
_WHO: Final = _HOLDERS.where(ApiKeyRow.sha256 == bindparam("sha256"))
_WHO_IN_SESSION: Final = _HOLDERS.join(SessionRow, SessionRow.key_id == ApiKeyRow.id).where(
    SessionRow.sha256 == bindparam("sha256"), SessionRow.expires_at > db_now()
)
_USED_EVERY: Final = timedelta(minutes=1)
_PREFIX: Final = "ft-"
# 256 random bits: a plain hash is enough, because the key cannot be guessed.
_KEY_BYTES: Final = 32


class Holder(NamedTuple):
    """The holder of a key that exists and is not revoked."""

    key_id: str
    key_name: str
    project: str | None
    """None: an operator."""
    role: Role
    member_id: str | None
    scopes: frozenset[str] | None
    """None: all that the role may do."""
    expires_at: datetime | None
    is_expired: bool
    max_requests_per_second: float | None = None


class Grant(NamedTuple):
    """What a key gives to whoever holds it."""

    project: str | None = None
    role: Role = Role.OPERATOR
    member_id: str | None = None
    scopes: Sequence[str] | None = None
    expires_at: datetime | None = None


OPERATORS: Final = Grant()


def create(session: Session, name: str, grant: Grant = OPERATORS) -> tuple[ApiKeyRow, str]:
    """A new key: its row, and the key itself, which cannot be shown again later."""
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    row = ApiKeyRow(
        id=f"key-{uuid.uuid4().hex}",
        name=name,
        sha256=sha256(key),
        created_at=db_now(),
        revoked_at=None,
        project_id=grant.project,
        role=grant.role,
        member_id=grant.member_id,
        scopes=None if grant.scopes is None else sorted(grant.scopes),
        expires_at=grant.expires_at,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row, key


def rotate(session: Session, row: ApiKeyRow, grace_seconds: float) -> tuple[ApiKeyRow, str]:
    """A key in the place of this one, which works for `grace_seconds` more and no longer than it
    would have."""
    new = create(session, row.name, grant_of(row))
    until = clock(session) + timedelta(seconds=grace_seconds)
    row.expires_at = until if row.expires_at is None else min(until, row.expires_at)
    session.flush()
    return new


def grant_of(row: ApiKeyRow) -> Grant:
    return Grant(row.project_id, Role(row.role), row.member_id, row.scopes, row.expires_at)


def list_all(session: Session, scope: Scope = EVERYTHING) -> list[ApiKeyRow]:
    """Every key that was ever made, the oldest first."""
    query = select(ApiKeyRow).where(scope.filter(ApiKeyRow.project_id))
    return list(session.scalars(query.order_by(ApiKeyRow.created_at, ApiKeyRow.id)))


def active(session: Session, id_or_name: str, scope: Scope = EVERYTHING) -> list[ApiKeyRow]:
    """Keys that work and have this id, or else this name; names need not be unique."""
    wanted = (ApiKeyRow.id == id_or_name) | (ApiKeyRow.name == id_or_name)
    works = or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > db_now())
    query = select(ApiKeyRow).where(
        wanted, ApiKeyRow.revoked_at.is_(None), works, scope.filter(ApiKeyRow.project_id)
    )
    found = list(session.scalars(query.order_by(ApiKeyRow.created_at, ApiKeyRow.id)))
    return [row for row in found if row.id == id_or_name] or found


def revoke(session: Session, key_id: str, scope: Scope = EVERYTHING) -> bool:
    """Refuse this key from now on; False when there is no such key or it is revoked already."""
    statement = (
        update(ApiKeyRow)
        .where(
            ApiKeyRow.id == key_id,
            ApiKeyRow.revoked_at.is_(None),
            scope.filter(ApiKeyRow.project_id),
        )
        .values(revoked_at=db_now())
        .returning(ApiKeyRow.id)
    )
    return session.scalar(statement) is not None


def revoke_all_of(session: Session, member_id: str) -> list[str]:
    """Refuse all keys of a member; their ids."""
    statement = (
        update(ApiKeyRow)
        .where(ApiKeyRow.member_id == member_id, ApiKeyRow.revoked_at.is_(None))
        .values(revoked_at=db_now())
        .returning(ApiKeyRow.id)
    )
    return list(session.scalars(statement))


def who(connection: Connection, key: str) -> Holder | None:
    """Whose key this is. Asked for every request: one statement, without the ORM."""
    digest = sha256(key)
    found = connection.execute(_WHO, {"sha256": digest}).one_or_none()
    if found is None or not hmac.compare_digest(found.sha256, digest):
        return None
    return _holder(found)


def holders(connection: Connection, ids: Collection[str]) -> dict[str, Holder]:
    """By its id, of each of these keys that exists and is not revoked."""
    found = connection.execute(_HOLDERS.where(ApiKeyRow.id.in_(sorted(ids))))
    return {row.id: _holder(row) for row in found}


def who_in_session(connection: Connection, token: str) -> Holder | None:
    """With whose key the session of this token began."""
    found = connection.execute(_WHO_IN_SESSION, {"sha256": sha256(token)}).one_or_none()
    return None if found is None else _holder(found)


def _holder(found: Row[Any]) -> Holder:
    role = Role(found.role)
    if found.member_role is not None and not Role(found.member_role).includes(role):
        role = Role(found.member_role)
    return Holder(
        key_id=found.id,
        key_name=found.name,
        project=found.project_id,
        role=role,
        member_id=found.member_id,
        scopes=None if found.scopes is None else frozenset(found.scopes),
        expires_at=found.expires_at,
        is_expired=bool(found.is_expired),
        max_requests_per_second=found.max_requests_per_second,
    )


def used(session: Session, key_id: str) -> None:
    """Note that the key is in use; at most once a minute, whichever process comes first."""
    earlier = db_now(-_USED_EVERY.total_seconds())
    session.execute(
        update(ApiKeyRow)
        .where(
            ApiKeyRow.id == key_id,
            or_(ApiKeyRow.last_used_at.is_(None), ApiKeyRow.last_used_at < earlier),
        )
        .values(last_used_at=db_now()),
        execution_options={"synchronize_session": False},
    )


def sha256(key: str) -> str:
    """What is stored of a key, and of the token of a session."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
