"""Sessions of browsers. Each belongs to the key it began with, and ends with it at the latest."""

import secrets
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store.database import db_now
from service.store.projects import keys
from service.store.tables.base import new_id
from service.store.tables.projects import SessionRow

SECONDS: Final = 12 * 3600
MOST_OF_A_KEY: Final = 100
"""If there are more, the oldest end: repeated sign-ins must not fill the database."""
_TOKEN_BYTES: Final = 32


def begin(session: Session, key_id: str) -> tuple[str, str]:
    """The id of a new session, and its token, which only the browser keeps."""
    _make_room(session, key_id)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    row = SessionRow(
        # Orders two that began in the same millisecond, SQLite's unit.
        id=new_id("session"),
        sha256=keys.sha256(token),
        key_id=key_id,
        created_at=db_now(),
        expires_at=db_now(SECONDS),
    )
    session.add(row)
    session.flush()
    return row.id, token


def _make_room(session: Session, key_id: str) -> None:
    session.execute(delete(SessionRow).where(SessionRow.expires_at <= db_now()))
    of_key = select(SessionRow.id).where(SessionRow.key_id == key_id)
    newest_first = of_key.order_by(SessionRow.created_at.desc(), SessionRow.id.desc())
    oldest = newest_first.offset(MOST_OF_A_KEY - 1)
    session.execute(delete(SessionRow).where(SessionRow.id.in_(session.scalars(oldest).all())))


def end(session: Session, token: str) -> tuple[str, keys.Holder | None] | None:
    """The id of the session that has ended, and whose it was unless it had expired; None if there
    was none."""
    holder = keys.who_in_session(session.connection(), token)
    statement = delete(SessionRow).where(SessionRow.sha256 == keys.sha256(token))
    ended = session.scalar(statement.returning(SessionRow.id))
    return None if ended is None else (ended, holder)
