"""The documentation for people, at `/docs`: a page that needs nothing from another host.

The scripts of Swagger UI come with the package `fastapi-offline`; the page and its own script are
ours. All of it can be read without a key, because it is the same everywhere; the page asks for the
key when `/openapi.json` needs one.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Final

from fastapi import APIRouter, Header
from fastapi.responses import RedirectResponse, Response

from service.api.problems.errors import RouteNotFoundError

PAGE_PATH: Final = "/docs"
ASSETS_PATH: Final = "/docs/assets/"
_MEDIA_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "favicon.png": "image/png",
}
_OURS: Final = frozenset({"index.html", "page.css", "page.js"})
_HEADERS: Final = {
    # Revalidated each time, mostly with a 304, so that a new release shows at once.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    # Swagger UI sets styles in the page, and its style sheet holds images.
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)
IfNoneMatch = Annotated[str | None, Header()]


@dataclass(frozen=True)
class _File:
    content: bytes
    etag: str


@cache
def _file(name: str) -> _File:
    ours, theirs = files("service.api.openapi") / "docs_page", files("fastapi_offline") / "static"
    content = ((ours if name in _OURS else theirs) / name).read_bytes()
    return _File(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _answer(name: str, if_none_match: str | None) -> Response:
    file = _file(name)
    headers = {**_HEADERS, "ETag": file.etag}
    if if_none_match is not None and file.etag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=_MEDIA_TYPES[name], headers=headers)


@router.get("/")
@router.get("/redoc")
def to_the_page() -> Response:
    return RedirectResponse(PAGE_PATH.lstrip("/"), 307)


@router.get(PAGE_PATH)
def page(if_none_match: IfNoneMatch = None) -> Response:
    return _answer("index.html", if_none_match)


@router.get(f"{ASSETS_PATH}{{name}}")
def asset(name: str, if_none_match: IfNoneMatch = None) -> Response:
    if name not in _MEDIA_TYPES:
        raise RouteNotFoundError(f"The documentation has no file {name!r}.")
    return _answer(name, if_none_match)
