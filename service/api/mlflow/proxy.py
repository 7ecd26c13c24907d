"""MLflow's pages and API at `/mlflow/`, for holders of an API key.

MLflow has no users. What reaches it comes through here, with a key or a session, and only what
`service.mlflow_access` lists; it receives the server's own token instead of the visitor's key.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final

import httpx
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.types import Receive, Scope, Send

from service import mlflow_access
from service.api.mlflow import sessions
from service.api.mlflow.visitors import MlflowVisitors
from service.api.problems.errors import (
    ForbiddenRouteError,
    MlflowUnavailableError,
    RouteNotFoundError,
    UnauthorizedError,
)
from service.settings import Settings

PREFIX: Final = "/mlflow"
_FORWARDED: Final = ("accept", "accept-language", "content-type", "range", "if-none-match")
_RETURNED: Final = (
    *("content-type", "content-length", "content-range", "accept-ranges", "content-disposition"),
    *("etag", "last-modified", "cache-control", "location"),
)
_PAGE_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)
# What MLflow's pages ask at each start about parts of it that are not served: there are none.
_ABSENT: Final[dict[str, dict[str, object]]] = {
    "/ajax-api/2.0/mlflow/gateway-proxy": {"endpoints": []},
    "/ajax-api/3.0/mlflow/assistant/config": {"providers": {}, "projects": {}},
    "/ajax-api/3.0/mlflow/assistant/providers": {"providers": [], "resolved": None},
}
# What a job has written is shown as it is, and runs nothing, whatever its type.
_ARTIFACT_POLICY: Final = "sandbox; default-src 'none'; frame-ancestors 'self'"


class MlflowProxy:
    """An ASGI app for everything below `/mlflow`."""

    def __init__(self, settings: Settings, visitors: MlflowVisitors) -> None:
        self._settings = settings
        self._visitors = visitors
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except UnauthorizedError:
            is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
            if not is_page:
                raise
            # Up to the root of the API, which may have a prefix. The browser keeps the `#…` of the
            # address.
            up = "../" * (request.scope["path"].count("/") - 1)
            response = RedirectResponse(f"{up}login", 303)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if self._settings.mlflow_uri is None or self._settings.mlflow_token_file is None:
            raise RouteNotFoundError("This service does not serve MLflow.")
        access = await self._visitors.access_of(sessions.shown(request.headers))
        path = request.scope["path"].removeprefix(PREFIX)
        if not path:
            return RedirectResponse("mlflow/", 307)
        if request.method == "GET" and path in _ABSENT:
            return JSONResponse(_ABSENT[path])
        query = request.scope["query_string"].decode("latin-1")
        body = await request.body()
        is_allowed = mlflow_access.is_allowed(request.method, path, query, access)
        if not is_allowed or not mlflow_access.is_body_allowed(path, body):
            raise ForbiddenRouteError(
                f"{request.method} {path} of MLflow is not open to this key. Jobs make the runs; "
                "here they can be read and, except by viewers, tagged."
            )
        return await self._forward(request, path, query, body)

    async def _forward(self, request: Request, path: str, query: str, body: bytes) -> Response:
        token = self._settings.mlflow_token
        headers = {name: value for name in _FORWARDED if (value := request.headers.get(name))}
        if token is not None:
            headers["authorization"] = f"Bearer {token.get_secret_value()}"
        base = httpx.URL(str(self._settings.mlflow_uri).rstrip("/"))
        url = base.copy_with(path=f"{base.path.rstrip('/')}{path}", query=query.encode() or None)
        asked = self._http().build_request(request.method, url, headers=headers, content=body)
        try:
            answer = await self._http().send(asked, stream=True)
        except httpx.TransportError as error:
            raise MlflowUnavailableError("Try again in a moment.") from error
        return StreamingResponse(
            _chunks(answer), answer.status_code, _returned(answer.headers, path)
        )

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            # Not through a proxy of the environment, and with every encoding left as it is.
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(60, connect=5), trust_env=False, follow_redirects=False
            )
        return self._client


async def _chunks(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def _returned(headers: Mapping[str, str], path: str) -> dict[str, str]:
    found = {name: headers[name] for name in _RETURNED if name in headers}
    if encoding := headers.get("content-encoding"):
        found["content-encoding"] = encoding
    found |= {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "x-frame-options": "SAMEORIGIN",
        "content-security-policy": _PAGE_POLICY,
    }
    if mlflow_access.is_artifact(path):
        found["content-security-policy"] = _ARTIFACT_POLICY
        found.setdefault("content-disposition", "attachment")
    if not path.startswith("/static-files/"):
        found["cache-control"] = "no-store"
    return found
