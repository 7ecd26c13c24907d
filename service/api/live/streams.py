"""The messages of one stream: the same job's events, or its log, from any place to its end."""

import json
import random
from collections.abc import AsyncIterator
from typing import Final

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from sqlalchemy.exc import SQLAlchemyError

from service.api.jobs.log_reader import read_part
from service.api.live.feed import Message, Watcher, as_message
from service.api.schemas.history import LogPart
from service.contract.states import ENDED
from service.store.database import is_outage
from service.store.jobs import queries

_PAGE: Final = 100
_PART_BYTES: Final = 65536
_SHOWN: Final = ("state", "stage", "phase", "progress", "last_metrics")
_RETRY_MS: Final = (1000, 4000)
"""Clients of a process that stops connect again spread over this time."""
HEARTBEAT_SECONDS: Final = 15.0


async def events(watcher: Watcher, after: int) -> AsyncIterator[bytes]:
    """Each event above `after` once, and how far the job is, whenever that has changed."""
    yield _begin()
    shown: str | None = None
    while not watcher.is_over:
        version, head = watcher.channel.version, watcher.head()
        if head is None:
            yield _end("deleted")
            return
        if after < head.event_seq:
            messages = watcher.channel.after(after)
            if messages is None:
                messages = await _older(watcher, after, version)
            if messages is None:
                return
            if messages:
                after = messages[-1].seq
                yield b"".join(message.content for message in messages)
                continue
        else:
            progress = json.dumps(
                {name: getattr(head, name) for name in _SHOWN}, separators=(",", ":")
            )
            if progress != shown:
                yield format_sse_event(data_str=progress, event="progress")
                shown = progress
            if head.state in ENDED:
                yield _end(head.state)
                return
        if not await watcher.channel.newer_than(version, HEARTBEAT_SECONDS):
            yield KEEPALIVE_COMMENT


async def log(watcher: Watcher, offset: int) -> AsyncIterator[bytes]:
    """The log from byte `offset` on, in parts that split no character."""
    yield _begin()
    size = 0
    while not watcher.is_over:
        version, head = watcher.channel.version, watcher.head()
        if head is None:
            yield _end("deleted")
            return
        part, message = await _part(watcher, offset, version, ended=head.state in ENDED)
        if 0 < part.size < min(size, offset):  # it was cut off, and begins anew
            offset, size = 0, part.size
            continue
        size = part.size or size
        if part.content:
            yield message
        offset = max(offset, part.next_offset)
        if part.eof:
            yield _end(head.state)
            return
        if not part.content and not await watcher.channel.newer_than(version, HEARTBEAT_SECONDS):
            yield KEEPALIVE_COMMENT


async def _part(
    watcher: Watcher, offset: int, version: int, *, ended: bool
) -> tuple[LogPart, bytes]:
    def read() -> tuple[LogPart, bytes]:
        folder = watcher.channel.log.parent
        part = read_part(folder, "job.log", offset, _PART_BYTES, ended=ended)
        data = part.model_dump_json()
        return part, format_sse_event(data_str=data, event="log", id=str(part.next_offset))

    return await watcher.feed.shared((watcher.channel, version, offset, ended), read)


async def _older(watcher: Watcher, after: int, version: int) -> list[Message] | None:
    """A page from the database; None if it is unreachable: the client should connect again."""
    key = (watcher.channel, version, after, watcher.principal.scope)
    try:
        return await watcher.feed.shared(key, lambda: _page(watcher, after))
    except SQLAlchemyError as error:
        if not is_outage(error):
            raise
        return None


def _page(watcher: Watcher, after: int) -> list[Message]:
    with watcher.feed.database.read() as session:
        scope = watcher.principal.scope
        rows, _ = queries.events(session, scope, watcher.job_id, after=after, limit=_PAGE)
        return [as_message(row) for row in rows]


def _begin() -> bytes:
    return format_sse_event(retry=random.randint(*_RETRY_MS))


def _end(state: str) -> bytes:
    return format_sse_event(data_str=json.dumps({"state": state}), event="end")
