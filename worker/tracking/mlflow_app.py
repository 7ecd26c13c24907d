"""MLflow's app as `finetune up` and the containers serve it: for holders of its token alone, and
only with the requests that the service sends or its users may see.

MLflow itself has no login, and some of its routes read any file of the server's user.
"""

import hmac
import os
from pathlib import Path
from typing import Final

from mlflow.server.fastapi_app import app as mlflow_app
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import mlflow_access
from service.mlflow_access import Access

TOKEN_FILE: Final = "FINETUNE_MLFLOW_TOKEN_FILE"
_HEALTH: Final = "/health"
_MOST_JSON: Final = 8 << 20


class Guard:
    """Refuses every request without the token, and every one that is not on the list."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != _HEALTH:
            refusal, receive = await self._check(scope, receive)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self.app(scope, receive, send)

    async def _check(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, self._expected):
            return PlainTextResponse("The token of this server is required.\n", 401), receive
        refusal = PlainTextResponse("This server does not serve this request.\n", 403)
        if not mlflow_access.is_allowed(scope["method"], path, query, Access.SERVICE):
            return refusal, receive
        if not mlflow_access.needs_body_check(path):
            return None, receive
        body = await _read(receive)
        if body is None or not mlflow_access.is_body_allowed(path, body):
            return refusal, receive
        return None, _again(body, receive)


async def _read(receive: Receive) -> bytes | None:
    """The body; None if it is too long or the client has disconnected."""
    parts, size = [], 0
    while size <= _MOST_JSON:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


def _again(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


app = Guard(mlflow_app, Path(os.environ[TOKEN_FILE]).read_text("utf-8").strip())
