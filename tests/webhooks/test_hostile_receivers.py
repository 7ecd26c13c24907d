"""Receivers that answer without an end, too slowly or nonsense: a try takes little and ends."""

import gzip
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from service.settings import Settings
from service.store.webhooks.deliveries import Claimed, Outcome, Sealed
from service.system.secret_box import SecretBox
from service.webhooks import signatures
from service.webhooks.requests import Requests
from tests.support.servers.scripted_service import untrusted_certificate

TRY_SECONDS: Final = 0.5
Talk = Callable[[socket.socket], None]


@contextmanager
def receiver(talk: Talk, certificate: Path | None = None) -> Iterator[str]:
    """Its URL; `talk` answers the first request."""
    listener = socket.create_server(("127.0.0.1", 0))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listener = context.wrap_socket(listener, server_side=True)

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                _read_request(connection)
                talk(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        scheme = "http" if certificate is None else "https"
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/"
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


def outcome(tmp_path: Path, talk: Talk, certificate: Path | None = None) -> tuple[Outcome, float]:
    """What came of one try, and its seconds."""
    with receiver(talk, certificate) as url:
        return tried(tmp_path, url=url)


def tried(tmp_path: Path, **given: Any) -> tuple[Outcome, float]:
    settings = Settings(home=tmp_path, webhook_allow=["127.0.0.1"])
    box = SecretBox(settings.secrets_file)
    secret = given.pop("secret", signatures.new_secret())
    claimed = Claimed(
        **{
            "id": "delivery-1",
            "epoch": 1,
            "project": "p",
            "lane": "l",
            "webhook_id": None,
            "secrets": (Sealed("ci", box.seal("p", "ci", secret)),),
            "event_id": "evt_1",
            "event_type": "job.succeeded",
            "payload": {"data": {}},
            "tries": 0,
            **given,
        }
    )
    requests = Requests(settings, try_seconds=TRY_SECONDS)
    began = time.monotonic()
    try:
        found = requests.send(claimed)
    finally:
        requests.close()
    assert found.claimed is claimed
    return found, time.monotonic() - began


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
def test_what_is_not_an_answer_fails_in_time(tmp_path: Path, talk: Talk, error: str) -> None:
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


def reset(connection: socket.socket) -> None:
    time.sleep(0.1)  # what was sent before is read
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize(
    "talk",
    [
        after(CHUNKED + b"5\r\nhello\r\n", reset),
        after(CHUNKED + b"5\r\nhello\r\n", lambda connection: connection.sendall(b"no number\r\n")),
        after(OK + b"Content-Length: 9\r\n\r\nhello", lambda _: None),
    ],
    ids=["reset", "no chunk", "shorter than it said"],
)
def test_an_answer_that_breaks_off_has_been_given(tmp_path: Path, talk: Talk) -> None:
    found, _ = outcome(tmp_path, talk)
    assert (found.status, found.error, found.answer) == (200, None, "hello")


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


@pytest.mark.parametrize(
    ("status", "error", "is_final"),
    [
        (200, None, False),
        (299, None, False),
        (300, "the receiver answered HTTP 300: redirects are not followed", False),
        (399, "the receiver answered HTTP 399: redirects are not followed", False),
        (400, "the receiver answered HTTP 400", False),
        (409, "the receiver answered HTTP 409", False),
        (410, "the receiver answered HTTP 410", True),
    ],
)
def test_what_a_status_means(
    tmp_path: Path, status: int, error: str | None, is_final: bool
) -> None:
    answer = b"HTTP/1.1 %d X\r\nContent-Length: 3\r\n\r\na\x00\xff" % status
    found, _ = outcome(tmp_path, lambda connection: connection.sendall(answer))
    assert (found.status, found.error, found.is_final) == (status, error, is_final)
    assert (found.answer, found.retry_after) == ("a\ufffd", 0.0)  # a database takes no NUL


class TestSecure:
    def test_a_certificate_that_the_machine_trusts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = untrusted_certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        found, _ = outcome(tmp_path, lambda it: it.sendall(OK + b"\r\nfine"), file)
        assert (found.status, found.answer, found.error) == (200, "fine", None)

    def test_one_that_nobody_knows(self, tmp_path: Path) -> None:
        found, _ = outcome(tmp_path, lambda _: None, untrusted_certificate(tmp_path))
        assert found.status is None
        assert "certificate verify failed" in (found.error or "")

    def test_a_handshake_that_hangs_ends_in_time(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            given_up = threading.Timer(3.0, listener.close)
            given_up.start()
            port = listener.getsockname()[1]
            found, seconds = tried(tmp_path, url=f"https://127.0.0.1:{port}/")
            given_up.cancel()
        assert (found.error or "").startswith("ConnectTimeout")
        assert seconds < TRY_SECONDS + 0.5

    def test_a_drip_ends_in_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = untrusted_certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        found, seconds = outcome(tmp_path, after(OK, forever(b"X", 0.05)), file)
        assert (found.error or "").startswith("ReadTimeout")
        assert seconds < TRY_SECONDS + 0.5


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"secrets": ()}, "the secret that signs was deleted"),
        ({"secret": "whsec_=="}, "the secret must be `whsec_` and base64"),
        ({"url": "http://127.0.0.1:1/"}, "ConnectError: [Errno 111] Connection refused"),
    ],
)
def test_what_may_have_ended_at_the_next_try(
    tmp_path: Path, given: dict[str, Any], error: str
) -> None:
    found, _ = tried(tmp_path, **{"url": "http://127.0.0.1:1/"} | given)
    assert (found.error, found.status, found.is_final) == (error, None, False)


def test_an_error_that_a_database_could_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(*_: object, **__: object) -> None:
        raise OSError("\x00?" * 1000)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    found, _ = tried(tmp_path, url="https://hooks.example.com/")
    beginning = "ConnectError: hooks.example.com cannot be looked up: "
    assert found.error == (beginning + "?" * 300)[:300]
