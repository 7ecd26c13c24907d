"""How many connections the API holds open, and how long it waits for each."""

import resource
from asyncio import AbstractEventLoop, Transport
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

from service.api.http.rejection_log import RejectionLog

_OTHER_DESCRIPTORS: Final = 100
"""Descriptors of the API itself: database, broker, log, programs that check files."""
_FEWEST: Final = 8


@dataclass(frozen=True)
class Limits:
    """Seconds, bytes, and bytes per second."""

    most_connections: int = 1000
    header_seconds: float = 10
    """From the connection, or the end of the answer before, to the end of the headers."""
    body_seconds: float = 20
    """After these seconds a body must arrive at `body_rate` on average."""
    body_rate: int = 4096
    answer_seconds: float = 60
    """How long a client may go without reading its answer."""
    rest_seconds: float = 5
    """For the rest of a body that was answered before its end."""
    sweep_seconds: float = 1
    header_bytes: int = 32 * 1024
    head_bytes: int = 128 * 1024
    """Of the request line and the headers together."""
    headers: int = 100
    pipelined: int = 32


def affordable(wanted: int) -> int:
    """`wanted` connections, or as many as this process has descriptors for: each may need another
    one, for the file that it sends or receives."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return max(_FEWEST, min(wanted, (allowed - _OTHER_DESCRIPTORS) // 2))


class Connection(Protocol):
    """What the gate needs to know about a connection."""

    transport: Transport
    loop: AbstractEventLoop

    def end_if_overdue(self, now: float) -> None: ...


class Gate:
    """The connections of one server. Idle ones are closed to make room for new ones."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.rejections = RejectionLog()
        self._open: set[Connection] = set()
        self._is_sweeping = False
        # Those without a request, the longest-waiting first.
        self._waiting: OrderedDict[Connection, None] = OrderedDict()

    def enter(self, connection: Connection) -> None:
        if len(self._open) >= self.limits.most_connections:
            victim = next(iter(self._waiting), connection)
            self.waits_no_longer(victim)
            victim.transport.abort()
        self._open.add(connection)
        self._waiting[connection] = None
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_later(connection.loop)

    def leave(self, connection: Connection) -> None:
        self._open.discard(connection)
        self.waits_no_longer(connection)

    def waits(self, connection: Connection) -> None:
        self._waiting[connection] = None

    def waits_no_longer(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def _sweep_later(self, loop: AbstractEventLoop) -> None:
        loop.call_later(self.limits.sweep_seconds, self._sweep, loop)

    def _sweep(self, loop: AbstractEventLoop) -> None:
        for connection in tuple(self._open):
            connection.end_if_overdue(loop.time())
        self._is_sweeping = bool(self._open)
        if self._is_sweeping:
            self._sweep_later(loop)
