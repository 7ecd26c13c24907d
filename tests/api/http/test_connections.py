"""Attacks on connections: half-open, slow, many, and requests that proxies read differently."""

import http.client
import json
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from service.api.http.connection_limits import Limits, affordable
from service.settings import Settings
from tests.api.conftest import running
from tests.api.http.raw_http import (
    LIVE,
    Address,
    address_of,
    answer,
    drip,
    half_open,
    is_closed,
    send,
    status_of,
)
from tests.api.interactive.first_answer import api_process

_QUICK = Limits(
    most_connections=24,
    header_seconds=0.5,
    body_seconds=3,
    answer_seconds=0.5,
    rest_seconds=1,
    sweep_seconds=0.1,
    header_bytes=4096,
    head_bytes=64 * 1024,
    headers=20,
)
_LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def quick(sqlite_template: Path, tmp_path: Path) -> Iterator[Address]:
    """A server whose patience is short."""
    shutil.copy(sqlite_template, tmp_path / "finetune.db")
    settings = Settings(
        home=tmp_path,
        auth="off",
        redis_url="redis://127.0.0.1:1/0",
    )
    with running(settings, _QUICK) as url:
        yield address_of(url)


def is_alive(address: Address) -> bool:
    return b'{"status":"live"}' in send(address, LIVE)


def _sent(connection: socket.socket, request: bytes) -> bool:
    try:
        connection.sendall(request)
    except ConnectionError:
        return False
    return True


class TestTime:
    @pytest.mark.parametrize("sent", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\nA: "])
    def test_headers_that_never_end(self, quick: Address, sent: bytes) -> None:
        with half_open(quick, 1, sent) as [connection]:
            assert status_of(answer(connection)) in (0, 408)
            assert is_closed(connection)

    def test_headers_that_come_byte_by_byte(self, quick: Address) -> None:
        with half_open(quick, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ") as [connection]:
            assert drip(connection, b"a", 5) < 2

    def test_empty_lines_do_not_keep_a_connection(self, quick: Address) -> None:
        """They ended uvicorn's own timer, and nothing began another one."""
        with half_open(quick, 1, _LIVE) as [connection]:
            time.sleep(0.1)
            assert drip(connection, b"\r\n", 5) < 2

    def test_a_slow_body(self, quick: Address) -> None:
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with half_open(quick, 1, head + b"Content-Length: 9000\r\n\r\n[") as [connection]:
            received = answer(connection)
        assert status_of(received) == 408
        assert json.loads(received.partition(b"\r\n\r\n")[2])["code"] == "request_timeout"

    def test_the_rest_of_a_body_that_was_answered(self, quick: Address) -> None:
        head = (
            b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        )
        with half_open(quick, 1, head) as [connection]:
            assert drip(connection, b"x" * 4096, 5) < 2

    def test_an_answer_that_is_not_read(self, quick: Address) -> None:
        """The document is sent again and again, and the client reads nothing."""
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(quick)
            connection.settimeout(0.2)
            ended = time.monotonic() + 20
            is_ended = False
            while time.monotonic() < ended and not is_ended:
                with suppress(TimeoutError):
                    is_ended = not _sent(connection, request)
                time.sleep(0.05)
            assert is_ended


class TestNumber:
    def test_half_open_ones_give_way(self, quick: Address) -> None:
        with half_open(quick, 3 * _QUICK.most_connections) as connections:
            started = time.monotonic()
            assert is_alive(quick)
            assert time.monotonic() - started < 1
            still_open = sum(not is_closed(connection) for connection in connections)
            assert still_open <= _QUICK.most_connections

    def test_those_that_were_answered_before_the_end_of_their_body_give_way(
        self, quick: Address
    ) -> None:
        """An answer such as 401 or 404 needs no key."""
        sent = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n"
        with half_open(quick, 3 * _QUICK.most_connections, sent):
            started = time.monotonic()
            assert is_alive(quick)
            assert time.monotonic() - started < 1

    def test_a_request_in_progress_does_not(self, quick: Address) -> None:
        head = b"POST /v1/jobs/validate HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\n"
        body = b'{"task": "quest"}'
        with half_open(quick, 1, head + b"Content-Length: %d\r\n\r\n" % len(body)) as [busy]:
            time.sleep(0.1)
            with half_open(quick, 3 * _QUICK.most_connections):
                busy.sendall(body)
                busy.settimeout(5)
                assert status_of(busy.recv(65536)) == 200

    def test_descriptors_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
        assert affordable(1000) == 78
        monkeypatch.setattr(resource, "getrlimit", lambda _: (20_000, 20_000))
        assert affordable(1000) == 1000

    @pytest.mark.usefixtures("processes")
    def test_280_of_them_and_256_descriptors(self, sqlite_url: str, tmp_path: Path) -> None:
        """They killed the API."""
        few = ("bash", "-c", 'ulimit -n 256; exec "$@"', "-")
        with api_process(tmp_path, sqlite_url, *few) as (process, address):
            with half_open(address, 280):
                started = time.monotonic()
                assert is_alive(address)
                assert time.monotonic() - started < 2
            assert process.poll() is None


_POST = b"POST /v1/jobs/validate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_REFUSED = {
    "two hosts": (b"GET /health/live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "no host": (b"GET /health/live HTTP/1.1\r\n\r\n", 400),
    "an absolute URI": (b"GET http://a/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "both lengths": (
        _POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (_POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400),
    "a negative length": (_POST + b"Content-Length: -1\r\n\r\n", 400),
    "a length with a sign": (_POST + b"Content-Length: +2\r\n\r\n{}", 400),
    "an unknown coding": (_POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "a space before the colon": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "a folded header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n", 400),
    "a bare line feed": (_POST + b"A: b\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a chunk of no size": (_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
    "a huge chunk": (_POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
    "long headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 5000 + b"\r\n\r\n", 431),
    "many headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 30 + b"\r\n", 431),
    "a long path": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    "CONNECT": (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 400),
    "a flood of requests": (_LIVE * 500, 400),
}
_ANSWERED = {
    "TRACE": (b"TRACE /v1/jobs HTTP/1.1\r\nHost: localhost\r\nCookie: a\r\n\r\n", 405),
    "OPTIONS": (b"OPTIONS /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "a method of our own": (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "NUL in the path": (b"GET /v1/jobs/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "dots in the path": (
        b"GET /v1/files/%2e%2e%2f%2e%2e/content HTTP/1.1\r\nHost: localhost\r\n\r\n",
        404,
    ),
    "an artifact above": (
        b"GET /v1/jobs/job-1/artifacts/..%2f..%2ffinetune.db HTTP/1.1\r\nHost: localhost\r\n\r\n",
        404,
    ),
    "no UTF-8 in the path": (b"GET /v1/jobs/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "a websocket": (
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        200,
    ),
    "a compressed body": (
        _POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        415,
    ),
    "a long Accept": (
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nAccept: " + b"*/*," * 900 + b"\r\n\r\n",
        200,
    ),
    "many parameters": (
        b"GET /v1/jobs?" + b"a=1&" * 8000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        422,
    ),
    "a date beyond all dates": (
        b"GET /v1/jobs?created_after=0001-01-01T00:00:00%2B23:59 HTTP/1.1\r\n"
        b"Host: localhost\r\n\r\n",
        200,
    ),
}


_TRAILERS = _POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


class TestSize:
    """The parser keeps what has no end: 53 MB of headers took 1.1 GB of memory in 8 s."""

    @pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\nHost: localhost\r\n", _TRAILERS])
    @pytest.mark.parametrize("piece", [b"a" * 4096, b"a: b\r\n" * 1000])
    def test_headers_without_an_end(self, quick: Address, begun: bytes, piece: bytes) -> None:
        with half_open(quick, 1, begun + b"A: ") as [connection]:
            connection.settimeout(5)
            taken = 0
            while taken < 100_000_000 and _sent(connection, piece):
                taken += len(piece)
            assert taken < 10_000_000  # the buffers of both sockets
        assert is_alive(quick)

    def test_a_body_of_small_chunks(self, quick: Address) -> None:
        body = b" " * 20_000 + b"{}"
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        assert len(chunks) > _QUICK.head_bytes
        sent = _POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
        assert status_of(send(quick, sent, seconds=1.5)) == 200


def rejections(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    return [line for line in lines if line["event"] == "request.rejected"]


class TestRequests:
    @pytest.mark.parametrize(("request_bytes", "status"), _REFUSED.values(), ids=_REFUSED)
    def test_what_is_not_a_request_ends_the_connection(
        self, quick: Address, request_bytes: bytes, status: int
    ) -> None:
        received = send(quick, request_bytes)
        last = received.rpartition(b"HTTP/1.1 ")[2]
        assert status_of(b"HTTP/1.1 " + last) == status
        problem = json.loads(last.partition(b"\r\n\r\n")[2])
        assert problem["code"] in ("invalid_http", "headers_too_large")

    @pytest.mark.parametrize(("request_bytes", "status"), _ANSWERED.values(), ids=_ANSWERED)
    def test_what_is_a_request_is_answered(
        self, quick: Address, request_bytes: bytes, status: int
    ) -> None:
        with half_open(quick, 1, request_bytes) as [connection]:
            assert status_of(connection.recv(65536)) == status

    def test_each_that_is_refused_is_one_line_of_the_log(
        self, quick: Address, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO", "service.api.access"):
            received = send(quick, b"GET / HTTP/1.1\r\n\r\n")
            send(quick, b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 8000 + b"\r\n\r\n")
            with half_open(quick, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ") as [slow]:
                answer(slow)
        lines = rejections(caplog)
        found = [(line["status"], line["code"], line["client"]) for line in lines]
        assert found == [
            (400, "invalid_http", "127.0.0.1"),
            (431, "headers_too_large", "127.0.0.1"),
            (408, "request_timeout", "127.0.0.1"),
        ]
        problem = json.loads(received.partition(b"\r\n\r\n")[2])
        assert lines[0]["request_id"] == problem["request_id"]

    def test_many_that_are_refused_are_few_lines(
        self, quick: Address, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO", "service.api.access"):
            for _ in range(40):
                assert status_of(send(quick, b"GET / HTTP/1.1\r\n\r\n")) == 400
            time.sleep(1.1)
            send(quick, b"GET / HTTP/1.1\r\n\r\n")
        lines = rejections(caplog)
        assert 10 <= len(lines) <= 20
        assert sum(line["unlogged"] for line in lines) + len(lines) == 41

    def test_head_has_no_body(self, quick: Address) -> None:
        connection = http.client.HTTPConnection(*quick, timeout=5)
        connection.request("HEAD", "/health/live")
        response = connection.getresponse()
        assert (response.status, response.read()) == (405, b"")
        connection.close()

    def test_a_connection_serves_many_requests(self, quick: Address) -> None:
        connection = http.client.HTTPConnection(*quick, timeout=5)
        for _ in range(50):
            connection.request("GET", "/health/live")
            assert connection.getresponse().read() == b'{"status":"live"}'
        connection.close()
