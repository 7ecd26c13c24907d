"""Receivers that answer without an end, too slowly or nonsense: a try takes little and ends."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from service.secret_box import SecretBox
from service.settings import Settings
from service.store.deliveries import Claimed, Outcome, Sealed
from service.webhooks import signatures
from service.webhooks.requests import Requests

TRY_SECONDS: Final = 0.5
Talk = Callable[[socket.socket], None]


@contextmanager
def receiver(talk: Talk) -> Iterator[str]:
    """Its URL; `talk` answers the first request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            _read_request(connection)
            talk(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        thread.join(5)
        listener.close()
        assert not thread.is_alive(), "the sender has not closed its connection"


def _read_request(connection: socket.socket) -> None:
    """All of it: a connection that is closed with bytes unread is reset, and its answer lost."""
    with connection.makefile("rb") as request:
        length = 0
        while (line := request.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        request.read(length)


def outcome(tmp_path: Path, talk: Talk) -> tuple[Outcome, float]:
    """What came of one try, and its seconds."""
    settings = Settings(home=tmp_path, webhook_allow=["127.0.0.1"])
    sealed = SecretBox(settings.secrets_file).seal("p", "ci", signatures.new_secret())
    with receiver(talk) as url:
        claimed = Claimed(
            id="delivery-1",
            epoch=1,
            project="p",
            lane="l",
            webhook_id=None,
            url=url,
            secrets=(Sealed("ci", sealed),),
            event_id="evt_1",
            event_type="job.succeeded",
            payload={"data": {}},
            tries=0,
        )
        requests = Requests(settings, try_seconds=TRY_SECONDS)
        began = time.monotonic()
        try:
            return requests.send(claimed), time.monotonic() - began
        finally:
            requests.close()


def forever(part: bytes, pause: float = 0.0) -> Talk:
    def talk(connection: socket.socket) -> None:
        while True:
            connection.sendall(part)
            time.sleep(pause)

    return talk


def after(head: bytes, talk: Talk) -> Talk:
    def both(connection: socket.socket) -> None:
        connection.sendall(head)
        talk(connection)

    return both


OK: Final = b"HTTP/1.1 200 OK\r\n"
CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("talk", "error"),
    [
        (after(OK, forever(b"X-More: 0123456789\r\n" * 500)), "RemoteProtocolError"),
        (forever(b"HTTP/1.1 100 Continue\r\n\r\n", 0.001), "ReadTimeout"),
        (after(OK, forever(b"X", 0.05)), "ReadTimeout"),
        (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"), "RemoteProtocolError"),
        (lambda _: None, "RemoteProtocolError"),
    ],
    ids=["headers without an end", "1xx without an end", "a drip", "no HTTP", "hangs up"],
)
def test_what_is_no_answer_fails_in_time(tmp_path: Path, talk: Talk, error: str) -> None:
    found, seconds = outcome(tmp_path, talk)
    assert (found.error or "").startswith(error)
    assert (found.status, found.is_final) == (None, False)
    assert seconds < TRY_SECONDS + 0.5


def test_of_a_body_without_an_end_the_beginning_is_read(tmp_path: Path) -> None:
    found, seconds = outcome(tmp_path, after(CHUNKED, forever(b"5\r\nhello\r\n")))
    assert (found.status, found.error) == (200, None)
    assert (found.answer or "").startswith("hellohello")
    assert len(found.answer or "") == 2048
    assert seconds < TRY_SECONDS


def test_a_body_that_drips_has_been_delivered_at_the_deadline(tmp_path: Path) -> None:
    found, seconds = outcome(tmp_path, after(CHUNKED, forever(b"1\r\nx\r\n", 0.05)))
    assert (found.status, found.error) == (200, None)
    assert TRY_SECONDS <= seconds < TRY_SECONDS + 0.5


def test_what_is_packed_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(10_000_000))
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    found, _ = outcome(tmp_path, lambda connection: connection.sendall(head + bomb))
    assert found.error is None
    assert len(found.answer or "") <= 2048


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(b"600", 600.0), (b"Wed, 21 Oct 2099 07:28:00 GMT", 0.0), (b"-5", 0.0), (b"9" * 40, 0.0)],
)
def test_a_receiver_says_how_long_it_wants_to_be_left_alone(
    tmp_path: Path, header: bytes, seconds: float
) -> None:
    head = b"HTTP/1.1 503 Busy\r\nRetry-After: " + header + b"\r\nContent-Length: 0\r\n\r\n"
    found, _ = outcome(tmp_path, lambda connection: connection.sendall(head))
    assert (found.status, found.retry_after) == (503, seconds)
