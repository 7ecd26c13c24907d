"""What watched jobs do, read for all of their watchers together: one read of the database a tick.
On Postgres a tick comes early when some process has committed events
(`service.store.jobs.wake_ups`).

A watcher keeps only how far it has read. It takes the newest events from its job's channel and
older ones from the database, so a slow one costs no memory.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi.sse import format_sse_event
from sqlalchemy.exc import SQLAlchemyError

from service.api.http import principal as principals
from service.api.http.principal import Principal
from service.api.schemas.history import Event
from service.contract.roles import Permission
from service.contract.states import ENDED
from service.store.database import Database
from service.store.jobs import wake_ups, watching
from service.store.jobs.watching import Head
from service.store.projects import keys
from service.store.scope import EVERYTHING, Scope
from service.store.tables.jobs import EventRow

TICK_SECONDS: Final = 0.5
KEY_SECONDS: Final = 5.0
"""Seconds until a stream ends whose key was revoked or has expired."""
_KEPT: Final = 32
"""Newest events of each watched job."""
_MOST_EVENTS: Final = 5000
"""Read in one tick; of jobs beyond it the watchers read for themselves."""
_READERS: Final = 4
_T = TypeVar("_T")
_log = structlog.stdlib.get_logger(__name__)


class Message(NamedTuple):
    """An event as it is sent: made once for all who watch the job."""

    seq: int
    content: bytes


def as_message(row: EventRow) -> Message:
    data = Event.from_row(row).model_dump_json()
    return Message(row.seq, format_sse_event(data_str=data, event=row.type, id=str(row.seq)))


class Channel:
    """One watched job."""

    def __init__(self, head: Head, log: Path) -> None:
        self.head: Head | None = head
        """None after the job was deleted."""
        self.log = log
        self.log_bytes: int | None = None
        self.watchers = 0
        self.version = 0
        self._last = head.event_seq
        self._recent: deque[Message] = deque(maxlen=_KEPT)
        self._changed = asyncio.Event()

    def is_before(self, head: Head | None) -> bool:
        """False if this was read before the present head: reads overtake one another."""
        return self.head is None or head is None or head.event_seq >= self.head.event_seq

    def unread(self) -> list[int]:
        """Numbers of the events that its head has and the channel has not: the newest ones."""
        if self.head is None:
            return []
        return list(
            range(max(self._last, self.head.event_seq - _KEPT) + 1, self.head.event_seq + 1)
        )

    def take(self, rows: list[Message]) -> None:
        if rows and rows[0].seq != self._last + 1:  # some were left out
            self._recent.clear()
        if rows:
            self._recent.extend(rows)
            self._last = rows[-1].seq

    def after(self, seq: int) -> list[Message] | None:
        """The events above `seq`; None when the channel does not have all of them."""
        has_newest = self.head is not None and self._last == self.head.event_seq
        if not has_newest or not self._recent or self._recent[0].seq > seq + 1:
            return None
        return [message for message in self._recent if message.seq > seq]

    def wake(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer_than(self, version: int, seconds: float) -> bool:
        """Whether something has changed since `version`; waits at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.version == version:
                    await self._changed.wait()
        return self.version != version


class Watcher:
    """One open stream."""

    def __init__(self, feed: "Feed", channel: Channel, principal: Principal, job_id: str) -> None:
        self.feed = feed
        self.channel = channel
        self.principal = principal
        self.job_id = job_id
        self.is_over = False
        """Its key no longer works, or this process stops."""

    def head(self) -> Head | None:
        """None when its principal may no longer see the job."""
        head = self.channel.head
        return head if head is not None and self.principal.scope.has(head.project_id) else None

    def end(self) -> None:
        self.is_over = True
        self.channel.wake()


class Feed:
    """All watchers of this process. Lives in the event loop; reads in threads of its own."""

    def __init__(self, database: Database, workspace: Callable[[str], Path]) -> None:
        self.database = database
        self.workspace = workspace
        self.reads = 0
        """How often the database was read for all."""
        self._watchers: set[Watcher] = set()
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self._channels: dict[str, Channel] = {}
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._keys_read_at = 0.0

    async def in_thread(self, read: Callable[[], _T]) -> _T:
        """Reads of single watchers, a few at once: they must not take all threads."""
        return await to_thread.run_sync(read, limiter=self._readers)

    async def shared(self, key: Hashable, read: Callable[[], _T]) -> _T:
        """`in_thread`, once for all watchers that ask for the same meanwhile. The key has the
        version of their channel: what they get was read after that."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = asyncio.create_task(self.in_thread(read))
            task.add_done_callback(lambda ended: self._forget(key, ended))
        found: _T = await asyncio.shield(task)
        return found

    def _forget(self, key: Hashable, ended: asyncio.Task[Any]) -> None:
        del self._shared[key]
        # If all callers were cancelled, none of them retrieves the exception: do it here.
        ended.cancelled() or ended.exception()

    async def _in_tick(self, read: Callable[[], _T]) -> _T:
        """Reads for all watchers, on a thread that those of single ones never take."""
        return await to_thread.run_sync(read, limiter=self._ticker)

    # They belong to the event loop, which does not run yet when the feed is made.

    @cached_property
    def _readers(self) -> CapacityLimiter:
        return CapacityLimiter(_READERS)

    @cached_property
    def _ticker(self) -> CapacityLimiter:
        return CapacityLimiter(1)

    def known_head(self, job_id: str, scope: Scope) -> Head | None:
        """Of a job that others watch already: many who connect at once cost no read each. It may be
        a tick old, so that of an ended job, which may have been retried since, does not count."""
        channel = self._channels.get(job_id)
        head = None if channel is None else channel.head
        if head is None or head.state in ENDED or not scope.has(head.project_id):
            return None
        return head

    def join(self, principal: Principal, job_id: str, head: Head) -> Watcher:
        channel = self._channels.get(job_id)
        if channel is None:
            log = self.workspace(job_id) / "job.log"
            channel = self._channels[job_id] = Channel(head, log)
        elif channel.is_before(head):
            channel.head = head
        channel.watchers += 1
        watcher = Watcher(self, channel, principal, job_id)
        watcher.is_over = self._is_closed
        self._watchers.add(watcher)
        if not self._tasks:
            listener = wake_ups.listen(self.database.engine, self._woken)
            self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(listener)]
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        watcher.channel.watchers -= 1
        if watcher.channel.watchers == 0:
            del self._channels[watcher.job_id]
        if not self._watchers:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    def close(self) -> None:
        """End all streams, whose clients then connect to the next process."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.end()

    async def _run(self) -> None:
        while True:
            await self._next_tick()
            try:
                await self._tick()
            except SQLAlchemyError as error:
                _log.warning("live.read_failed", error=str(error))
            except Exception:
                # All streams of the process would wait without an end.
                _log.exception("live.tick_failed")

    async def _next_tick(self) -> None:
        """At the latest after TICK_SECONDS; soon after events were committed, on Postgres."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), TICK_SECONDS)
            # Before the pause: a call during it speaks also for commits that come after the read.
            self._woken.clear()
            await asyncio.sleep(wake_ups.SETTLE_SECONDS)

    async def _tick(self) -> None:
        channels = dict(self._channels)
        heads, sizes = await self._in_tick(lambda: self._read_heads(channels))
        self.reads += 1
        changed = []
        for job_id, channel in channels.items():
            head = heads.get(job_id)
            if not channel.is_before(head):
                continue
            if (head, sizes[job_id]) != (channel.head, channel.log_bytes):
                channel.head, channel.log_bytes = head, sizes[job_id]
                changed.append(job_id)
        try:
            await self._fill({job_id: channels[job_id] for job_id in changed})
        finally:
            # Also when that failed: the next tick sees no change, and watchers can read themselves.
            for job_id in changed:
                channels[job_id].wake()
        if time.monotonic() - self._keys_read_at > KEY_SECONDS:
            self._keys_read_at = time.monotonic()
            await self._check_keys()

    async def _fill(self, channels: dict[str, Channel]) -> None:
        """Give channels the events that are new in their jobs."""
        wanted = [(job_id, seq) for job_id, channel in channels.items() for seq in channel.unread()]
        if wanted:
            found = await self._in_tick(lambda: self._read_events(wanted[:_MOST_EVENTS]))
            for job_id, rows in found.items():
                channels[job_id].take(rows)

    def _read_heads(
        self, channels: dict[str, Channel]
    ) -> tuple[dict[str, Head], dict[str, int | None]]:
        # The state is read first: the log then has everything written before the end.
        with self.database.read() as session:
            heads = watching.heads(session, EVERYTHING, channels)
        return heads, {job_id: _size(channel.log) for job_id, channel in channels.items()}

    def _read_events(self, wanted: list[tuple[str, int]]) -> dict[str, list[Message]]:
        found: dict[str, list[Message]] = {}
        with self.database.read() as session:
            for row in watching.events(session, EVERYTHING, wanted):
                found.setdefault(row.job_id, []).append(as_message(row))
        return found

    async def _check_keys(self) -> None:
        """End the streams of keys that no longer allow them."""
        watchers = [each for each in self._watchers if each.principal.key_id is not None]
        ids = {each.principal.key_id for each in watchers if each.principal.key_id is not None}
        if not ids:
            return
        holders = await self._in_tick(lambda: self._read_keys(ids))
        for watcher in watchers:
            if not _may_still_watch(watcher.principal, holders.get(str(watcher.principal.key_id))):
                watcher.end()

    def _read_keys(self, ids: set[str]) -> dict[str, keys.Holder]:
        with self.database.connect() as connection:
            return keys.holders(connection, ids)


def _may_still_watch(principal: Principal, holder: keys.Holder | None) -> bool:
    if holder is None or holder.is_expired:
        return False
    now = principals.of_holder(holder)
    is_same = now.scope.project in (None, principal.scope.project)
    return is_same and Permission.JOBS_READ in now.permissions


def _size(path: Path) -> int | None:
    try:
        return os.lstat(path).st_size
    except OSError:
        return None
