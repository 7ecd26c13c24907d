"""Sends the same requests repeatedly over persistent connections, and counts the responses.

Plain sockets: a client library would take more processor time than the server that is measured.
"""

import json
import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 30.0
Request = Callable[[], bytes]


def encode(method: str, path: str, body: Any = None) -> bytes:
    """A whole HTTP/1.1 request with a JSON body, or none."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if content:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


@dataclass(frozen=True)
class Load:
    """Latencies in milliseconds of all requests that were answered within `seconds`."""

    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, percent: int) -> float:
        return statistics.quantiles(self.latencies, n=100)[percent - 1]

    def __str__(self) -> str:
        at = ", ".join(f"p{p} {self.percentile(p):.1f}" for p in (50, 95, 99))
        return f"{self.rate:7.0f}/s  ms: {at}"


class Connection:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def send(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the response."""
        self._socket.sendall(request)
        status = int(self._stream.readline().split()[1])
        length = 0
        while (line := self._stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, self._stream.read(length)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def load(url: str, request: Request, *, status: int, clients: int, seconds: float) -> Load:
    """`clients` connections that each send `request()` as soon as the previous response is there.

    Any other status than `status` ends the benchmark.
    """
    latencies: list[list[float]] = [[] for _ in range(clients)]
    faults: list[str] = []
    end = time.perf_counter() + seconds

    def run(own: list[float]) -> None:
        connection = Connection(url)
        try:
            while (sent := time.perf_counter()) < end:
                got, body = connection.send(request())
                if got != status:
                    faults.append(f"{got}: {body[:500]!r}")
                    return
                own.append((time.perf_counter() - sent) * 1000)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(own,)) for own in latencies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise SystemExit(f"{url} answered {faults[0]}")
    return Load(seconds, [value for own in latencies for value in own])
