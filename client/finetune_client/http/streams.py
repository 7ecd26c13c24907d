"""Live streams of a job: server-sent events, each once, however often the connection ends."""

import codecs
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx

from finetune_client import errors, types
from finetune_client.http import bodies, calls, flows
from finetune_client.http.calls import Call
from finetune_client.http.flows import Flow, Item, Json, Policy, Read, Sleep

_SILENCE_SECONDS: Final = 45.0
"""Seconds without a byte; the service sends a comment every 15 s."""
_LONGEST_MESSAGE: Final = 4 * 1024**2
_LINE_END: Final = re.compile(r"\r\n|\n|\r(?=[^\n])")
_FORMAT: Final = "text/event-stream"
Show = Callable[[Json], Any]


@dataclass(frozen=True)
class Message:
    event: str
    id: str | None
    data: str

    def json(self) -> Json:
        """Raises UnexpectedAnswerError."""
        try:
            content = json.loads(self.data)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise errors.UnexpectedAnswerError("a message of the stream is not a JSON object")
        return content


class Parser:
    """Makes messages of the bytes of a stream."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._rest = ""
        self._data: list[str] = []
        self._fields: dict[str, str] = {}
        self.retry: float | None = None
        """Seconds after which the service wants to be asked again."""

    def feed(self, part: bytes) -> Iterator[Message]:
        """The messages that this part completes. Raises UnexpectedAnswerError for one that is too
        long."""
        *lines, self._rest = _LINE_END.split(self._rest + self._decode(part))
        for line in lines:
            if line:
                self._take(line)
            elif message := self._whole():
                yield message
        if len(self._rest) + sum(map(len, self._data)) > _LONGEST_MESSAGE:
            raise errors.UnexpectedAnswerError("a message of the stream is too long")

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value) / 1000
        else:
            self._fields[name] = value

    def _whole(self) -> Message | None:
        data, fields = self._data, self._fields
        self._data, self._fields = [], {}
        if not data:
            return None
        return Message(fields.get("event", "message"), fields.get("id"), "\n".join(data))


@dataclass
class Place:
    """How far a stream has been read, also over several connections."""

    last: int = 0
    """Id of the last message."""
    retry: float = 1.0
    """Seconds before the next connection."""
    silent_since: float | None = None
    """When the service first did not answer, since it was last heard. The time that
    the caller takes between two messages does not count."""


def messages(
    policy: Policy,
    path: str,
    place: Place,
    read: Callable[[Message], Any],
    lost: Callable[[errors.FineTuneError], None] = lambda _error: None,
) -> Flow[None]:
    """What `read` makes of each message after `place`, without None, until the service ends the
    stream. `lost` is called when the service does not answer; it is outlasted for PATIENCE seconds.
    """
    while True:
        failure: errors.FineTuneError = errors.APIConnectionError(
            f"{policy.url} ended the stream of {path} too early"
        )
        try:
            if (yield from _connection(policy, path, place, read)):
                return
        except errors.UnexpectedAnswerError:
            raise
        except (errors.APIConnectionError, errors.ServerError) as error:
            failure = error
            lost(error)
        except httpx.RequestError as error:
            failure = flows.unreachable(policy, error)
        place.silent_since = place.silent_since or time.monotonic()
        if time.monotonic() - place.silent_since > flows.PATIENCE:
            raise failure
        yield Sleep(place.retry * (1 - 0.25 * random.random()))


def _connection(
    policy: Policy, path: str, place: Place, read: Callable[[Message], Any]
) -> Flow[bool]:
    """One connection's messages; whether the stream has ended."""
    headers = {"Accept": _FORMAT, "Last-Event-ID": str(place.last)}
    call = Call("GET", path, headers=headers, is_repeatable=True, timeout=_SILENCE_SECONDS)
    answer = yield from flows.answered(policy, call, streams=True)
    if not answer.headers.get("content-type", "").startswith(_FORMAT):
        raise errors.UnexpectedAnswerError(f"{policy.url} does not answer with a stream")
    parser = Parser()
    while part := (yield Read(answer)):
        place.silent_since = None
        for message in parser.feed(part):
            if message.id is not None and message.id.isdecimal():
                place.last = int(message.id)
            if (found := read(message)) is not None:
                yield Item(found)
            if message.event == "end":
                return True
        place.retry = place.retry if parser.retry is None else parser.retry
    return False


def completion(policy: Policy, path: str, body: Json) -> Flow[None]:
    """The chunks of a completion in OpenAI's API; one that is interrupted is not continued."""
    call = Call("POST", path, json={**body, "stream": True}, timeout=_SILENCE_SECONDS)
    answer = yield from flows.answered(policy, call, streams=True)
    parser = Parser()
    try:
        while part := (yield Read(answer)):
            for message in parser.feed(part):
                if message.data == "[DONE]":
                    return
                yield Item(message.json())
    except httpx.RequestError as error:
        raise flows.unreachable(policy, error) from error
    raise errors.APIConnectionError(f"{policy.url} ended the answer too early")


def events(policy: Policy, job_id: str, after: int, poll: float) -> Flow[None]:
    """The job's events after the one with the number `after`, until it has ended: each once."""
    read = partial(bodies.read, types.Event)
    polled = partial(flows.events, policy, job_id, poll=poll, read=read)
    return _numbered(policy, calls.job(job_id, "events", "stream"), Place(after), read, polled)


def log(policy: Policy, job_id: str, offset: int, poll: float) -> Flow[None]:
    """The parts of the log from byte `offset` on, until the job has ended."""
    read = partial(bodies.read, types.LogPart)
    polled = partial(flows.log, policy, job_id, poll=poll, read=read)
    return _numbered(policy, calls.job(job_id, "logs", "stream"), Place(offset), read, polled)


def _numbered(
    policy: Policy, path: str, place: Place, read: Show, polled: Callable[[int], Flow[None]]
) -> Flow[None]:
    """The messages that have an id. `polled` continues where too many streams are open."""

    def item(message: Message) -> Any:
        return None if message.id is None else read(message.json())

    try:
        yield from messages(policy, path, place, item)
    except errors.RateLimitError:
        yield from polled(place.last)
