"""API keys: shown once when they are made, stored as hashes, compared in constant time."""

import hashlib
import hmac
import secrets
import uuid
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, exists, literal, select, true, update
from sqlalchemy.orm import Session

from service.store.database import db_now
from service.store.models import ApiKeyRow

_FOUND = (
    select(ApiKeyRow.id, ApiKeyRow.sha256)
    .where(ApiKeyRow.sha256 == bindparam("sha256"), ApiKeyRow.revoked_at.is_(None))
    .subquery()
)
_WHO = select(~exists(select(ApiKeyRow.id)), _FOUND.c.id, _FOUND.c.sha256).select_from(
    select(literal(1).label("one")).subquery().outerjoin(_FOUND, true())
)


class Visitor(NamedTuple):
    key_id: str | None
    """Of the key that was sent, if it works."""
    is_open: bool
    """No key was ever made: anyone may come in. Revoking the last one does not open again."""


_PREFIX = "ft-"
# 256 random bits: a plain hash is enough, there is nothing to guess from it.
_KEY_BYTES = 32


def create(session: Session, name: str) -> tuple[ApiKeyRow, str]:
    """A new key: its row, and the key itself, which cannot be had again later."""
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    row = ApiKeyRow(
        id=f"key-{uuid.uuid4().hex}",
        name=name,
        sha256=_sha256(key),
        created_at=db_now(),
        revoked_at=None,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row, key


def list_all(session: Session) -> list[ApiKeyRow]:
    """Every key that was ever made, the oldest first."""
    return list(session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)))


def active(session: Session, id_or_name: str) -> list[ApiKeyRow]:
    """Keys that work and have this id, or else this name; names need not be unique."""
    wanted = (ApiKeyRow.id == id_or_name) | (ApiKeyRow.name == id_or_name)
    query = select(ApiKeyRow).where(wanted, ApiKeyRow.revoked_at.is_(None))
    found = list(session.scalars(query.order_by(ApiKeyRow.created_at, ApiKeyRow.id)))
    return [row for row in found if row.id == id_or_name] or found


def revoke(session: Session, key_id: str) -> bool:
    """Refuse this key from now on; False when there is no such key or it is revoked already."""
    statement = (
        update(ApiKeyRow)
        .where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None))
        .values(revoked_at=db_now())
        .returning(ApiKeyRow.id)
    )
    return session.scalar(statement) is not None


def any_active(session: Session) -> bool:
    """Whether somebody holds a key that works."""
    statement = select(ApiKeyRow.id).where(ApiKeyRow.revoked_at.is_(None)).limit(1)
    return session.scalar(statement) is not None


def who(connection: Connection, key: str | None) -> Visitor:
    """Whose key this is. Asked for every request: one statement, without the ORM."""
    digest = "" if key is None else _sha256(key)
    is_open, key_id, sha256 = connection.execute(_WHO, {"sha256": digest}).one()
    known = sha256 is not None and hmac.compare_digest(sha256, digest)
    return Visitor(key_id if known else None, is_open)


def _sha256(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
