"""The middleware: request ids, access log, body limit, API keys; no traceback reaches a client."""

import re
import time
import uuid
from collections.abc import Collection
from typing import Final, Protocol

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http import principal as principals
from service.api.http.key_use import KeyUse
from service.api.http.principal import PROJECT_HEADER, Principal
from service.api.http.single_flight import SingleFlight
from service.api.problems.errors import (
    BodyTooLargeError,
    DatabaseUnavailableError,
    InternalError,
    UnauthorizedError,
    refuse,
)
from service.errors import ProjectNotFoundError
from service.settings import Auth
from service.store.database import Database, is_outage

_UPLOAD: Final = re.compile(r"/v1/files|/v1/uploads/[^/]+/parts")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_log = structlog.stdlib.get_logger("service.api.access")


class RequestMetrics(Protocol):
    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""


class RequestContext:
    """Outermost: the request's id, access log and metrics, and unhandled exceptions."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"], state["received_at"] = request_id, time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._observed(scope, receive, send, request_id)

    async def _observed(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                # OpenAI's header for the time until the answer began.
                headers["openai-processing-ms"] = str(round((time.perf_counter() - started) * 1000))
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            _log.exception("request.failed", method=scope["method"], path=scope["path"])
            if status:  # too late for another response: the connection breaks
                raise
            problem = InternalError("Report it together with the request id.")
            await refuse(problem, scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            template = getattr(scope.get("route"), "path", "unmatched")
            self.metrics.observe(scope["method"], template, status, seconds)
            _log.info(
                "request.completed",
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round(seconds * 1000, 1),
                key=getattr(scope["state"].get("principal"), "key_id", None),
            )


MOST_BODY_BYTES: Final = 1024**2
"""Of any request except an upload."""


class BodyLimit:
    """Refuses bodies of more than `limit` bytes. Uploads have a limit of their own."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _UPLOAD.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        error = BodyTooLargeError(f"A body may have at most {self.limit} bytes.")
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self.limit:
            await refuse(error, scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise error
            return message

        await self.app(scope, counted, send)


class Authentication:
    """Every path but those in `open_to_all`, and those below one that ends in a slash, requires a
    valid key, whatever the database holds."""

    def __init__(
        self,
        app: ASGIApp,
        database: Database,
        auth: Auth,
        key_use: KeyUse,
        open_to_all: Collection[str],
    ) -> None:
        self.app = app
        self._open = frozenset(open_to_all)
        self._open_folders = tuple(
            path for path in open_to_all if len(path) > 1 and path.endswith("/")
        )
        self.database = database
        self._is_off = auth == "off"
        # A lookup takes half the time of a small request.
        self._visitors = SingleFlight(self._look_up)
        self._key_use = key_use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or scope["path"] in self._open
            or scope["path"].startswith(self._open_folders)
        ):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        authorization, project = headers.get("authorization", ""), headers.get(PROJECT_HEADER, "")
        principal = principals.ANYONE
        try:
            if project or not self._is_off:
                principal = await self._visitors.get(f"{authorization}\n{project}")
        except (DBAPIError, PoolTimeoutError) as error:
            if not is_outage(error):
                raise
            _log.error("database.unreachable", exc_info=error)
            problem = DatabaseUnavailableError("Try again in a moment.")
            await refuse(problem, scope, receive, send)
            return
        except (UnauthorizedError, ProjectNotFoundError) as error:
            await refuse(error, scope, receive, send)
            return
        scope["state"]["principal"] = principal
        self._key_use.note(principal.key_id)
        await self.app(scope, receive, send)

    def _look_up(self, asked: str) -> Principal:
        """Raises UnauthorizedError, ProjectNotFoundError."""
        authorization, _, project = asked.partition("\n")
        if self._is_off:
            with self.database.connect() as connection:
                return principals.in_project(connection, principals.ANYONE, project)
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthorizedError(principals.NO_KEY)
        with self.database.connect() as connection:
            return principals.identify(connection, key.strip(), project or None)
