"""An unreliable network to an HTTP server: a proxy that loses, delays and damages answers."""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from tests.support.servers.local_http import BodyReader, LocalServer

UPSTREAM_SECONDS = 60.0
# Headers of the connection, not of the message.
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})


class Weather(StrEnum):
    UNREACHABLE = "unreachable"
    """The connection breaks before the request arrives."""
    LOST = "answer lost"
    """The server handles the request, but its answer never arrives."""
    SLOW = "slow"
    LIMITED = "429"
    """With `Retry-After: 1`."""
    BROKEN = "5xx"
    TRUNCATED = "truncated"
    """Half of the answer's body, then the connection breaks."""
    HALF_JSON = "broken JSON"
    """A complete answer with status 200 that holds only half of the JSON. Files are not damaged."""


Forecast = Callable[[str, str], Weather | None]
"""(method, path) → what happens to the request."""


class Storm:
    """Hits a seeded share of all requests, with each kind equally often, until `is_over`."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()
        self.hits: Counter[Weather] = Counter()
        self.requests = 0
        self.is_over = False

    def __call__(self, _method: str, _path: str) -> Weather | None:
        with self._lock:
            self.requests += 1
            if self.is_over or self._random.random() >= self._share:
                return None
            fewest = min(self.hits[kind] for kind in Weather)
            kind = self._random.choice([kind for kind in Weather if self.hits[kind] == fewest])
            self.hits[kind] += 1
            return kind

    def summary(self) -> str:
        kinds = ", ".join(f"{self.hits[kind]} {kind}" for kind in Weather)
        return f"{self.hits.total()} of {self.requests} requests hit ({kinds})"


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def is_json(self) -> bool:
        types = [value for name, value in self.headers if name.lower() == "content-type"]
        return any(value.startswith("application/json") for value in types)


class WeatherProxy(LocalServer):
    """Serves `url` on the loopback in front of `upstream`, an http URL. A context manager."""

    def __init__(self, upstream: str, forecast: Forecast, slow_seconds: float = 2.0) -> None:
        super().__init__(_Handler)
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        self.upstream = (parts.hostname, parts.port or 80)
        self.forecast = forecast
        self.slow_seconds = slow_seconds


class _Handler(BodyReader):
    protocol_version = "HTTP/1.1"
    # Otherwise each answer waits 40 ms for the acknowledgement of its own headers.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the forecast counts."""

    def handle_one_request(self) -> None:
        """As in the base class, for every method; a disconnected client is not an error."""
        try:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            self._answer()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _answer(self) -> None:
        proxy: WeatherProxy = self.server.owner  # type: ignore[attr-defined]
        body = self.read_body()
        weather = proxy.forecast(self.command, self.path)
        if weather is Weather.UNREACHABLE:
            self.close_connection = True
            return
        if weather is Weather.LIMITED:
            self._send(_Answer(429, [("Retry-After", "1")], b"slow down"))
            return
        if weather is Weather.BROKEN:
            self._send(_Answer(503, [], b"try again"))
            return
        if weather is Weather.SLOW:
            time.sleep(proxy.slow_seconds)
        answer = self._forward(proxy.upstream, body)
        if weather is Weather.LOST:
            self.close_connection = True
            return
        if weather is Weather.HALF_JSON and answer.is_json:
            answer = replace(answer, body=answer.body[: len(answer.body) // 2])
        self._send(answer, cut=weather is Weather.TRUNCATED)

    def _forward(self, upstream: tuple[str, int], body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(*upstream, timeout=UPSTREAM_SECONDS)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def _send(self, answer: _Answer, *, cut: bool = False) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = str(len(answer.body))
        if self.command == "HEAD":  # the size of a body that it does not carry
            length = next((v for k, v in answer.headers if k.lower() == "content-length"), "0")
        self.send_header("Content-Length", length)
        self.end_headers()
        if cut:
            self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
