"""API keys: shown once when they are made, stored as hashes, compared in constant time."""

import hashlib
import hmac
import secrets
import uuid

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store.database import db_now
from service.store.models import ApiKeyRow

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


def revoke(session: Session, key_id: str) -> bool:
    """Refuse this key from now on; False when there is no such key or it is revoked already."""
    statement = (
        update(ApiKeyRow)
        .where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None))
        .values(revoked_at=db_now())
        .returning(ApiKeyRow.id)
    )
    return session.scalar(statement) is not None


def any_exist(session: Session) -> bool:
    """Whether a key was ever made: revoking the last one does not open the service again."""
    return session.scalar(select(ApiKeyRow.id).limit(1)) is not None


def any_active(session: Session) -> bool:
    """Whether somebody holds a key that works."""
    statement = select(ApiKeyRow.id).where(ApiKeyRow.revoked_at.is_(None)).limit(1)
    return session.scalar(statement) is not None


def find_active(session: Session, key: str) -> ApiKeyRow | None:
    """The row of a key that works, or None."""
    digest = _sha256(key)
    row = session.scalar(
        select(ApiKeyRow).where(ApiKeyRow.sha256 == digest, ApiKeyRow.revoked_at.is_(None))
    )
    if row is None or not hmac.compare_digest(row.sha256, digest):
        return None
    return row


def _sha256(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
