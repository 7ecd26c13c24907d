"""Connections to receivers: to checked addresses only, and with one deadline for all of a request.

A name is looked up once, its address is checked and connected to, and the peer is checked again: a
name that answers differently the second time gains nothing. TLS checks the name, not the address.
"""

import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import httpcore

from service.webhooks.addresses import Allowed, ReceiverNotAllowedError

_MOST_ADDRESSES: Final = 4
"""Addresses of one name that are tried."""


class Deadlines:
    """When the request of each thread has to be over."""

    def __init__(self) -> None:
        self._local = threading.local()

    def begin(self, seconds: float) -> None:
        self._local.until = time.monotonic() + seconds

    def left(self, timeout: float | None) -> float:
        """The rest of the time, at most `timeout`. Raises httpcore.ReadTimeout when it is over."""
        left = float(self._local.until) - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the receiver took too long")
        return left if timeout is None else min(left, timeout)


class CheckedBackend(httpcore.NetworkBackend):
    """Connects to allowed addresses alone."""

    def __init__(self, allowed: Allowed, deadlines: Deadlines) -> None:
        self._allowed = allowed
        self._deadlines = deadlines
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Raises ReceiverNotAllowedError, and httpcore's errors."""
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in self._addresses(host, port):
            try:
                stream = self._plain.connect_tcp(
                    address, port, self._deadlines.left(timeout), local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
                continue
            peer = stream.get_extra_info("server_addr")
            try:
                self._allowed.require_reachable(host, str(peer[0]))
            except ReceiverNotAllowedError:
                stream.close()
                raise
            return _TimedStream(stream, self._deadlines)
        raise failed

    def _addresses(self, host: str, port: int) -> list[str]:
        """Those of the host that may be reached. Raises ReceiverNotAllowedError if none may."""
        reachable, refused = [], None
        for address in _looked_up(host, port, self._deadlines.left(None)):
            without_zone = ipaddress.ip_address(address.partition("%")[0])
            try:
                self._allowed.require_reachable(host, str(without_zone))
                reachable.append(address)
            except ReceiverNotAllowedError as error:
                refused = error
        if refused is not None and not reachable:
            raise refused
        return reachable[:_MOST_ADDRESSES]


def _looked_up(host: str, port: int, seconds: float) -> list[str]:
    """Its addresses. Raises httpcore.ConnectError and httpcore.ConnectTimeout."""
    answers: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            answers.put(list(dict.fromkeys(str(each[4][0]) for each in found)))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    # The resolver does not take a deadline: a late lookup ends by its own limits, and its result is
    # ignored.
    threading.Thread(target=look_up, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise httpcore.ConnectTimeout(f"{host} was not looked up in time") from None
    if isinstance(answer, Exception):
        raise httpcore.ConnectError(f"{host} cannot be looked up: {answer}")
    return answer


class _TimedStream(httpcore.NetworkStream):
    """Ends with the deadline: a receiver that sends a byte now and then would hold a thread."""

    def __init__(self, stream: httpcore.NetworkStream, deadlines: Deadlines) -> None:
        self._stream = stream
        self._deadlines = deadlines

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadlines.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadlines.left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        secured = self._stream.start_tls(
            ssl_context, server_hostname, self._deadlines.left(timeout)
        )
        return _TimedStream(secured, self._deadlines)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
