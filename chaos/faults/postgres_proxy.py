"""A proxy in front of Postgres that reads the protocol and cuts connections at COMMIT.

The three cuts are the ways in which a client can be left without an answer to its COMMIT: the
server never received it, has executed it, or will execute it a moment later, when the client
already uses another connection.
"""

import asyncio
import random
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

# The first message of a connection has no type; it has one of these numbers instead of a version.
_CANCEL, _SSL, _GSS = 80877102, 80877103, 80877104
_QUERY, _PARSE, _BIND = b"Q", b"P", b"B"
_COMPLETE, _ERROR = b"C", b"E"
LATE_SECONDS = 0.5
_RARE = 3


class Cut(StrEnum):
    BEFORE = "before"
    """The COMMIT never arrives; the server rolls back."""
    AFTER = "after"
    """The server has committed; its answer never arrives."""
    LATE = "late"
    """The client's connection breaks; the COMMIT arrives LATE_SECONDS later."""


@dataclass
class Transaction:
    """What a connection has sent since its last BEGIN."""

    statements: list[str] = field(default_factory=list)
    parameters: bytes = b""

    def label(self) -> str:
        """What the service does in it: the type of its event, or what else it writes."""
        if any(text.startswith("INSERT INTO events") for text in self.statements):
            named = [kind for kind in _EVENTS if kind.encode() in self.parameters]
            return named[0] if named else "stage event"
        texts = " ".join(self.statements)
        return next((label for part, label in _WRITES if part in texts), "other")


_EVENTS = (
    *("submitted", "stage_started", "stage_finished", "attempt_failed", "lease_expired"),
    *("released", "cancel_requested", "cancelled", "resumed", "checkpoint"),
)
_WRITES = (
    ("INSERT INTO metrics", "metrics"),
    ("SET lease_until", "beat"),
    ("SET next_publish_at", "marked as sent"),
    ("tracked_seq", "shipped to MLflow"),
    ("tracking_final", "tracking done"),
    ("UPDATE workers", "worker's beat"),
    ("UPDATE jobs", "progress"),
)

Decide = Callable[[Transaction], Cut | None]


class Cutter:
    """Cuts a seeded share of all transactions, once it is `enabled`.

    It cuts half of those whose label was rarely cut: there are many beats and few cancels.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share
        self.cuts: Counter[tuple[str, Cut]] = Counter()
        self.commits = 0
        self.enabled = False

    def __call__(self, transaction: Transaction) -> Cut | None:
        self.commits += 1
        if not self.enabled:
            return None
        label = transaction.label()
        rare = all(self.cuts[label, kind] < _RARE for kind in Cut)
        if self._random.random() >= (max(0.5, self._share) if rare else self._share):
            return None
        # The way in which this label was cut least often.
        cut = min(Cut, key=lambda kind: self.cuts[label, kind])
        self.cuts[label, cut] += 1
        return cut

    def summary(self) -> str:
        kinds = Counter[str]()
        for (_, cut), count in self.cuts.items():
            kinds[cut] += count
        how = ", ".join(f"{count} {cut}" for cut, count in sorted(kinds.items()))
        return f"{kinds.total()} of {self.commits} COMMITs cut ({how})"

    def summary_by_label(self) -> str:
        labels = Counter[str]()
        for (label, _), count in self.cuts.items():
            labels[label] += count
        return ", ".join(f"{label} {count}" for label, count in labels.most_common())


class FirstCutter:
    """Cuts the first transaction with this label."""

    def __init__(self, label: str, cut: Cut) -> None:
        self._label = label
        self._cut = cut
        self.done = False

    def __call__(self, transaction: Transaction) -> Cut | None:
        if self.done or transaction.label() != self._label:
            return None
        self.done = True
        return self._cut


class PostgresProxy:
    """Serves 127.0.0.1:`port` on a thread of its own. A context manager."""

    def __init__(self, upstream_port: int, decide: Decide) -> None:
        self._upstream_port = upstream_port
        self._decide = decide
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-proxy")
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        self._call(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def disconnect(self) -> None:
        """Break all connections and refuse new ones, as if the server's host were unreachable."""
        self._call(self._close())

    def listen(self) -> None:
        self._call(self._listen())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.abort()

    async def _finish(self) -> None:
        """The handlers of aborted connections end before the loop does."""
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(_Side(reader, writer), self._decide)
        self._connections.add(connection)
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        try:
            await connection.run(self._upstream_port)
        finally:
            connection.abort()
            self._connections.discard(connection)


@dataclass
class _Side:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def message(self) -> tuple[bytes, bytes]:
        """(type, body). IncompleteReadError at the end of the stream."""
        head = await self.reader.readexactly(5)
        body = await self.reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
        return head[:1], body

    async def send(self, kind: bytes, body: bytes) -> None:
        self.writer.write(kind + struct.pack("!i", len(body) + 4) + body)
        await self.writer.drain()

    def abort(self) -> None:
        self.writer.transport.abort()


class _Connection:
    def __init__(self, client: _Side, decide: Decide) -> None:
        self._client = client
        self._server: _Side | None = None
        self._decide = decide
        self._transaction = Transaction()
        self._prepared: dict[bytes, str] = {}
        self._cut: Cut | None = None

    def abort(self) -> None:
        self._client.abort()
        if self._server is not None:
            self._server.abort()

    async def run(self, upstream_port: int) -> None:
        try:
            self._server = _Side(*await asyncio.open_connection("127.0.0.1", upstream_port))
            await self._start(self._server)
            ways = {
                asyncio.create_task(self._upwards(self._server)),
                asyncio.create_task(self._downwards(self._server)),
            }
            _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, EOFError):
            return  # one side closed the connection

    async def _start(self, server: _Side) -> None:
        while True:
            size = await self._client.reader.readexactly(4)
            body = await self._client.reader.readexactly(struct.unpack("!i", size)[0] - 4)
            if struct.unpack("!i", body[:4])[0] not in (_SSL, _GSS):
                break
            self._client.writer.write(b"N")  # no encryption: this proxy reads the protocol
        server.writer.write(size + body)
        await server.writer.drain()

    async def _upwards(self, server: _Side) -> None:
        while True:
            kind, body = await self._client.message()
            self._note(kind, body)
            if _is_commit(kind, body):
                self._cut = self._decide(self._transaction)
                if self._cut is Cut.BEFORE:
                    return
                if self._cut is Cut.LATE:
                    self._client.abort()
                    await asyncio.sleep(LATE_SECONDS)
            await server.send(kind, body)
            if self._cut is not None:
                await asyncio.sleep(60)  # _downwards ends this when the server has committed

    async def _downwards(self, server: _Side) -> None:
        while True:
            kind, body = await server.message()
            if self._cut is not None and kind in (_COMPLETE, _ERROR):
                return  # committed, but the client gets no answer
            await self._client.send(kind, body)

    def _note(self, kind: bytes, body: bytes) -> None:
        """Follow the transaction: simple queries, and prepared statements by their names."""
        if kind == _QUERY:
            text = body.rstrip(b"\0").decode(errors="replace")
            if text.upper().startswith("BEGIN"):
                self._transaction = Transaction()
            self._transaction.statements.append(text)
        elif kind == _PARSE:
            name, statement, _ = body.split(b"\0", 2)
            self._prepared[name] = statement.decode(errors="replace")
        elif kind == _BIND:
            _, name, parameters = body.split(b"\0", 2)
            self._transaction.statements.append(self._prepared.get(name, ""))
            self._transaction.parameters += parameters


def _is_commit(kind: bytes, body: bytes) -> bool:
    text = body.split(b"\0")[1] if kind == _PARSE else body
    return kind in (_QUERY, _PARSE) and text.strip().upper().startswith(b"COMMIT")
