"""Tells the live streams of other processes that events were committed; on Postgres only.

Not in the same transaction: a COMMIT with a NOTIFY holds a lock of the whole database until it is
on disk, and 32 writers then made 369 commits a second instead of 1,742. A statement of its own,
which waits for no disk, left 1,273. A stream that misses one reads at its next tick all the same.
"""

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
import structlog
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.store.database import after_commit

CHANNEL: Final = "finetune_events"
SPACING_SECONDS: Final = 0.08
"""Between two calls of one process. Listeners wait longer than this before they read, so that what
was committed meanwhile needs no call of its own."""
SETTLE_SECONDS: Final = 0.1
_RECONNECT_SECONDS: Final = 1.0
# The transaction is this statement alone, so the setting holds for its own commit.
_NOTIFY: Final = text(
    "SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, '')"
).bindparams(channel=CHANNEL)
# A connection that was lost silently is noticed within a minute.
_KEEPALIVES: Final = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
_LOCK: Final = threading.Lock()
_CALLED_AT: Final[WeakKeyDictionary[Engine, float]] = WeakKeyDictionary()
_log = structlog.stdlib.get_logger(__name__)


def note_event(session: Session) -> None:
    """The transaction adds an event that a stream may be waiting for."""
    after_commit(session, _call)


def _call(autocommit: Engine) -> None:
    """Wake the streams, a few times a second at most. Never fails: the transaction is over."""
    if autocommit.dialect.name != "postgresql" or not _is_time(autocommit):
        return
    with suppress(SQLAlchemyError), autocommit.connect() as connection:
        connection.execute(_NOTIFY)


def _is_time(autocommit: Engine) -> bool:
    now = time.monotonic()
    with _LOCK:
        is_time = now - _CALLED_AT.get(autocommit, 0.0) >= SPACING_SECONDS
        if is_time:
            _CALLED_AT[autocommit] = now
    return is_time


async def listen(engine: Engine, woken: asyncio.Event) -> None:
    """Set `woken` whenever some process has called, and connect again when the connection is lost.
    Returns at once on SQLite; otherwise runs until it is cancelled."""
    if engine.dialect.name != "postgresql":
        return
    _, parameters = engine.dialect.create_connect_args(engine.url)
    while True:
        try:
            await _listen_once({**_KEEPALIVES, **parameters}, woken)
        except (psycopg.Error, OSError) as error:
            _log.warning("live.listener_lost", error=str(error).strip(), effect="reads each tick")
        await asyncio.sleep(_RECONNECT_SECONDS)


async def _listen_once(parameters: dict[str, Any], woken: asyncio.Event) -> None:
    connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
    async with connection:
        await connection.execute(f"LISTEN {CHANNEL}")
        woken.set()  # for what was committed before
        async for _ in connection.notifies():
            woken.set()
