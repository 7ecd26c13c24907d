"""Names with several addresses: of these only allowed ones are connected to."""

import socket
from collections.abc import Iterator
from typing import Any

import httpcore
import pytest

from service.webhooks.addresses import Allowed, ReceiverNotAllowedError
from service.webhooks.connections import CheckedBackend, Deadlines

NAME = "hooks.example.com"
PRIVATE = f"{NAME} is at {{}}, which is not a public address"


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server on 127.0.0.1 alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def connect(
    addresses: list[str],
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    allow: str = "127.0.0.0/8",
) -> str:
    """The address that was connected to."""

    def lookup(host: str, service: int, **options: Any) -> list[Any]:
        assert (host, service, options) == (NAME, port, {"type": socket.SOCK_STREAM})
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    deadlines = Deadlines()
    deadlines.begin(5.0)
    backend = CheckedBackend(Allowed.parse([allow]), deadlines)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lookup)
        patched.setattr(socket, "create_connection", _without_lookup)
        stream = backend.connect_tcp(NAME, port, timeout=2.0)
    peer = stream.get_extra_info("server_addr")
    stream.close()
    return str(peer[0])


def _without_lookup(address: tuple[str, int], timeout: float, **_: Any) -> socket.socket:
    """8.8.8.8 is led astray, to 127.0.0.1."""
    assert 0 < timeout <= 2.0
    host = "127.0.0.1" if address[0] == "8.8.8.8" else address[0]
    found = socket.socket()
    try:
        found.connect((host, address[1]))
    except OSError:
        found.close()
        raise
    return found


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1", "127.0.0.1", "fe80::1%lo"],  # some that are not allowed
        ["127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.4", "127.0.0.1"],  # or do not answer
    ],
)
def test_the_first_allowed_one_that_answers(
    addresses: list[str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect(addresses, port, monkeypatch) == "127.0.0.1"


@pytest.mark.parametrize(
    ("addresses", "error", "says"),
    [
        ([], httpcore.ConnectError, f"{NAME} has no address"),
        (["10.0.0.1"], ReceiverNotAllowedError, PRIVATE.format("10.0.0.1")),
        (["fe80::1%lo"], ReceiverNotAllowedError, PRIVATE.format("fe80::1")),
        (["127.0.0.2", "10.0.0.1"], httpcore.ConnectError, "refused"),
        ([f"127.0.0.{n}" for n in (2, 3, 4, 5, 1)], httpcore.ConnectError, "refused"),
    ],
    ids=["none", "private", "with a zone", "one that does not answer", "too many"],
)
def test_without_such_an_address(
    addresses: list[str],
    error: type[Exception],
    says: str,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(error, match=says):
        connect(addresses, port, monkeypatch)


def test_the_peer_is_checked_too(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReceiverNotAllowedError, match=PRIVATE.format("127.0.0.1")):
        connect(["8.8.8.8"], port, monkeypatch, allow="10.0.0.0/8")
