"""Requests by hand over a socket, also such as no client sends."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

Address = tuple[str, int]
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def address_of(url: str) -> Address:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def answer(connection: socket.socket, seconds: float = 5) -> bytes:
    """All that comes until the server closes the connection, or nothing more comes."""
    connection.settimeout(seconds)
    received = b""
    with suppress(TimeoutError, ConnectionError):
        while piece := connection.recv(65536):
            received += piece
    return received


def status_of(received: bytes) -> int:
    return int(received.split(b" ", 2)[1]) if received else 0


def send(address: Address, request: bytes, seconds: float = 5) -> bytes:
    with socket.create_connection(address, timeout=seconds) as connection:
        with suppress(ConnectionError):
            connection.sendall(request)
        return answer(connection, seconds)


@contextmanager
def half_open(
    address: Address, count: int, sent: bytes = b"GET / HT"
) -> Iterator[list[socket.socket]]:
    """So many connections that have sent only this."""
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(address, timeout=5))
            with suppress(ConnectionError):
                connection.sendall(sent)
            connections.append(connection)
        yield connections


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def drip(connection: socket.socket, piece: bytes, seconds: float) -> float:
    """Send `piece` every 50 ms until the server closes; the seconds that took."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        try:
            connection.sendall(piece)
        except OSError:
            break
        if is_closed(connection):
            break
        time.sleep(0.05)
    return time.monotonic() - started
