"""Reads live streams, and adds the events that they send."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from service.store.database import Database, clock
from service.store.jobs import state
from service.store.tables.jobs import JobRow

Message = dict[str, str]


def messages(lines: Iterator[str]) -> Iterator[Message]:
    """Of the lines of a stream; comments are left out."""
    message: Message = {}
    for line in lines:
        if not line and message:
            yield message
            message = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            message[name] = value


@contextmanager
def stream(client: httpx.Client, path: str, **arguments: Any) -> Iterator[Iterator[Message]]:
    with client.stream("GET", path, timeout=10, **arguments) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        yield messages(answer.iter_lines())


def append(database: Database, job_id: str, *numbers: int) -> None:
    with database.write() as session:
        row = session.get_one(JobRow, job_id, with_for_update=True)
        for number in numbers:
            state.append_event(session, row, "notice", {"n": number}, clock(session))
