"""Middleware around authentication: the audit log's entries, and how often a project may ask."""

import time
from typing import Final

import structlog
from anyio import to_thread
from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.principal import Principal
from service.api.http.token_bucket import Bucket
from service.api.problems.errors import refuse
from service.errors import RateQuotaError
from service.store.database import Database
from service.store.projects import audit
from service.store.projects.audit import Entry

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_REFUSALS: Final = {401: "unauthorized", 403: "forbidden"}
_REFUSALS_PER_MINUTE: Final = 60.0
_REFUSALS_AT_ONCE: Final = 10.0
_MOST_PROJECTS: Final = 10_000
_log = structlog.stdlib.get_logger(__name__)


def entry_of(scope: Scope) -> Entry:
    """Who sends the request, and what it asks for."""
    route, principal = scope.get("route"), scope["state"].get("principal")
    client = scope.get("client")
    entry = Entry(
        action=getattr(route, "name", None) or f"{scope['method']} {scope['path']}",
        target="/".join(str(part) for part in scope.get("path_params", {}).values()) or None,
        client=None if client is None else client[0],
        request_id=scope["state"].get("request_id"),
    )
    if principal is not None:
        sign(entry, principal)
    return entry


def sign(entry: Entry, principal: Principal) -> None:
    """Say in the entry who acts."""
    entry.project_id = principal.scope.project
    entry.key_id, entry.key_name = principal.key_id, principal.key_name
    entry.role = str(principal.role)


def note(request: Request) -> None:
    """Makes the first transaction of a request that may change something write its audit entry."""
    if request.method not in _SAFE:
        audit.begin(entry_of(request.scope))


class RefusalLog:
    """Outside of authentication: notes who was refused, a limited number a minute."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self.app = app
        self.database = database
        self._bucket = Bucket(_REFUSALS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _REFUSALS:
                await self._note(scope, _REFUSALS[message["status"]])
            await send(message)

        await self.app(scope, receive, noting)

    async def _note(self, scope: Scope, code: str) -> None:
        """Before the answer is sent, so that its receiver can already find the entry."""
        if self._bucket.take(_REFUSALS_PER_MINUTE / 60, time.monotonic()) == 0:
            await to_thread.run_sync(self._write, entry_of(scope), code)

    def _write(self, entry: Entry, code: str) -> None:
        try:
            with self.database.write(audited=False) as session:
                audit.refuse(session, entry, code)
        except SQLAlchemyError as error:
            _log.warning("audit.refusal_not_noted", error=str(error))


class Accounting:
    """Inside of authentication: the quota of requests per second, which each API process counts for
    itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._buckets: dict[str, Bucket] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wait = self._wait(scope)
        if wait > 0:
            await refuse(RateQuotaError(wait), scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _wait(self, scope: Scope) -> float:
        principal = scope["state"].get("principal")
        rate = getattr(principal, "max_requests_per_second", None)
        if principal is None or not rate:
            return 0.0
        if len(self._buckets) > _MOST_PROJECTS:
            self._buckets.clear()
        return self._buckets.setdefault(principal.project, Bucket()).take(rate, time.monotonic())
