"""The page at `/login`, where a browser gets a session for MLflow."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from service.api.http.accounting import entry_of
from service.api.http.dependencies import SettingsDep
from service.api.mlflow.proxy import PREFIX
from service.api.mlflow.sessions import COOKIE, session_token
from service.api.mlflow.visitors import MlflowVisitors
from service.api.problems.errors import InvalidJsonError, UnauthorizedError
from service.store.projects.sessions import SECONDS
from service.system.login_links import use_link

LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = f"{PREFIX}/logout"
"""Where the browser sends the cookie."""
SCRIPT_PATH: Final = "/login/page.js"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@cache
def _content(name: str) -> bytes:
    return (files("service.api.mlflow") / "login_page" / name).read_bytes()


@router.get(LOGIN_PATH)
def page() -> Response:
    return Response(_content("index.html"), media_type="text/html", headers=_HEADERS)


@router.get(SCRIPT_PATH)
def script() -> Response:
    return Response(_content("page.js"), media_type="text/javascript", headers=_HEADERS)


@router.post(LOGIN_PATH)
async def sign_in(request: Request, settings: SettingsDep) -> Response:
    """Begin a session with a `key`, or with the `link` of `finetune login`."""
    body = await _body(request)
    key = body.get("key")
    if isinstance(link := body.get("link"), str):
        key = await run_in_threadpool(use_link, settings.home, link)
    if not isinstance(key, str) or not key:
        raise UnauthorizedError("Send a `key`, or a `link` that was not used yet.")
    token = await run_in_threadpool(_visitors(request).sign_in, key, entry_of(request.scope))
    answer = Response(status_code=204, headers=_HEADERS)
    if token is None:
        return answer
    answer.set_cookie(
        COOKIE,
        token,
        max_age=SECONDS,
        path=PREFIX,
        httponly=True,
        secure=request.url.scheme == "https",
        samesite="strict",
    )
    return answer


@router.post(LOGOUT_PATH)
def sign_out(request: Request) -> Response:
    """End the session of the browser that asks, and of all who have a copy of its cookie."""
    token = session_token(request.headers)
    if token is not None:
        _visitors(request).sign_out(token, entry_of(request.scope))
    answer = Response(status_code=204, headers=_HEADERS)
    answer.delete_cookie(COOKIE, path=PREFIX, httponly=True, samesite="strict")
    return answer


def _visitors(request: Request) -> MlflowVisitors:
    visitors: MlflowVisitors = request.app.state.mlflow_visitors
    return visitors


async def _body(request: Request) -> dict[str, Any]:
    """Only JSON: a form of another site can send no such body without being asked first."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidJsonError("Send a JSON object as `application/json`.")
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidJsonError("Send a JSON object with a `key` or a `link`.")
    return found
