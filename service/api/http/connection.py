"""uvicorn's HTTP protocol with the limits that it does not have: on time, headers and connections.

Its own `limit_concurrency` only counts connections that have sent a whole request; idle ones would
stay open without limit.
"""

import uuid
from asyncio import AbstractEventLoop
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.api.http.connection_limits import Gate
from service.api.http.limits import LIVE_STREAM
from service.api.problems.errors import (
    HeadersTooLargeError,
    InvalidHttpError,
    RequestTimeoutError,
    render,
)
from service.errors import DomainError

_NO_HOST_BEFORE: Final = "1.1"


class _RefusedError(Exception):
    """Out of a callback of the parser, which then stops."""


class Connection(HttpToolsProtocol):
    """One connection; `gate` knows them all."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        gate: Gate,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._gate = gate
        self._limits = gate.limits
        self._refusal: DomainError = InvalidHttpError("Send a request as RFC 9112 defines it.")
        self._head_since: float | None = None
        self._body_since: float | None = None
        self._received = 0
        self._unparsed = 0
        """Bytes since the parser last had a whole head or a part of a body for us."""
        self._rest_until: float | None = None
        self._unread: tuple[int, float] | None = None

    # ---- life -----------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_since = self.loop.time()
        self._gate.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gate.leave(self)

    def shutdown(self) -> None:
        """Called when the server stops: a live stream does not end by itself."""
        super().shutdown()
        if not self._is_answered() and (feed := self.cycle.scope["state"].get(LIVE_STREAM)):
            feed.close()

    # ---- the parser's callbacks -----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._head_since is None and self._body_since is None and self._is_answered():
            # Also of empty lines, which begin no message and end uvicorn's own timer.
            self._head_since = self.loop.time()
        self._unparsed += len(data)
        super().data_received(data)
        # The parser keeps a head, or the trailers behind a body, until their end.
        if self._unparsed > self._limits.head_bytes and not self.transport.is_closing():
            self._end(self._too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._check_head()
        self._head_since = None
        self._unparsed = 0
        self._gate.waits_no_longer(self)
        self._body_since, self._received = self.loop.time(), 0
        super().on_headers_complete()
        if len(self.pipeline) > self._limits.pipelined:
            self._refuse(InvalidHttpError("Wait for answers before you send more requests."))

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_since = self._rest_until = None
        self._unparsed = 0
        super().on_message_complete()
        if self._is_answered():  # before its end; uvicorn's own timer was ended by the rest
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._body_since is not None:
            self._rest_until = self.loop.time() + self._limits.rest_seconds
        if not self.pipeline:
            self._gate.waits(self)

    def send_400_response(self, _msg: str) -> None:
        self._answer(self._refusal)

    # ---- limits ---------------------------------------------------------------------------------

    def _check_head(self) -> None:
        """Refuse headers that are too large, and what proxies read in different ways."""
        size = hosts = 0
        for name, value in self.headers:
            size += len(name) + len(value)
            hosts += name == b"host"
        limits = self._limits
        if (
            size > limits.header_bytes
            or size + len(self.url) > limits.head_bytes
            or len(self.headers) > limits.headers
        ):
            self._refuse(self._too_large())
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() >= _NO_HOST_BEFORE):
            self._refuse(InvalidHttpError("Send the header Host once."))
        if not self.url.startswith(b"/"):
            self._refuse(InvalidHttpError("Send the path alone, beginning with a slash."))

    def _too_large(self) -> HeadersTooLargeError:
        limits = self._limits
        return HeadersTooLargeError(
            f"A request may have {limits.headers} headers with {limits.header_bytes} bytes, with "
            f"its path and query {limits.head_bytes}."
        )

    def _refuse(self, error: DomainError) -> None:
        self._refusal = error
        raise _RefusedError

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def end_if_overdue(self, now: float) -> None:
        """Called every second."""
        limits = self._limits
        if self._is_unread(now) or (self._rest_until is not None and now > self._rest_until):
            self.transport.abort()
        elif self._head_since is not None and now - self._head_since > limits.header_seconds:
            detail = f"The headers took more than {limits.header_seconds:g} s."
            self._end(RequestTimeoutError(detail))
        elif self._body_since is not None and self._rest_until is None:
            if self.flow.read_paused:  # we are the side that does not read
                self._body_since += limits.sweep_seconds
            seconds = now - self._body_since - limits.body_seconds
            if self._received < seconds * limits.body_rate:
                detail = f"A body must arrive at {limits.body_rate} bytes per second."
                self._end(RequestTimeoutError(detail))

    def _is_unread(self, now: float) -> bool:
        """Whether the client has not read what we send for too long."""
        if not self.flow.write_paused:
            self._unread = None
            return False
        size = self.transport.get_write_buffer_size()
        if self._unread is None or self._unread[0] != size:
            self._unread = (size, now)
        return now - self._unread[1] > self._limits.answer_seconds

    def _end(self, error: DomainError) -> None:
        """Answer, if that is still possible, and close."""
        if self.headers is None:
            self.transport.close()  # it has sent nothing that could be answered
        elif not self._is_answered() and self.cycle.response_started:
            self.transport.abort()
        else:
            self._answer(error)

    def _answer(self, error: DomainError) -> None:
        request_id = uuid.uuid4().hex
        self._gate.rejections.note(self.client, error, request_id)
        response = render({"path": "/", "state": {"request_id": request_id}}, error)
        lines = [b"HTTP/1.1 %d %s" % (error.status, error.title.encode())]
        lines += [name + b": " + value for name, value in response.raw_headers]
        lines += [b"connection: close", b"", bytes(response.body)]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()
