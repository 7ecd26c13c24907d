"""Notes when a key was last used: at most once a minute, and after the request that uses it."""

import asyncio
import time
from typing import Final

import structlog
from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError

from service.store.database import Database
from service.store.projects import keys

_EVERY: Final = 60.0
_LAST_SECONDS: Final = 2.0
"""At the end of the process."""
_log = structlog.stdlib.get_logger(__name__)


class KeyUse:
    """One per process; requests never wait for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: dict[str, float] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._one_at_a_time = CapacityLimiter(1)

    def note(self, key_id: str | None) -> None:
        now = time.monotonic()
        if key_id is None or now - self._noted.get(key_id, -_EVERY) < _EVERY:
            return
        self._noted[key_id] = now
        task = asyncio.create_task(
            to_thread.run_sync(self._note, key_id, limiter=self._one_at_a_time)
        )
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        """Wait briefly for pending writes, so that the database can be closed; it may be
        unreachable."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=_LAST_SECONDS)

    def _note(self, key_id: str) -> None:
        try:
            with self._database.write(audited=False) as session:
                keys.used(session, key_id)
        except SQLAlchemyError as error:
            _log.warning("key.use_not_noted", key=key_id, error=str(error))
