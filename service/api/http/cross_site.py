"""What web pages of other sites may make a visitor's browser do here: nothing.

A page of any site can send requests to the loopback address of whoever looks at it. Three checks of
what browsers, unlike other clients, say about a request:

- `Host`: a page whose own name was made to lead here (DNS rebinding) still sends that name.
- `Sec-Fetch-Site`: no scripts, images or forms of other sites; links to a page may lead here.
- `Origin`: no changes for another site, also from a browser without `Sec-Fetch-Site`.
"""

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems.errors import CrossSiteError, UnknownHostError, refuse
from service.errors import DomainError
from service.settings import Settings

_OTHER_SITES: Final = frozenset({b"cross-site", b"same-site"})
_ANY: Final = "*"
# The page at /docs and those of MLflow have their own, as they run scripts.
_POLICY: Final = "default-src 'none'; frame-ancestors 'none'; sandbox"
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", _POLICY.encode()),
    (b"cache-control", b"no-store"),
)


class OtherSites:
    """Refuses requests that pages of other sites send, and forbids them to use the answers."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._hosts = frozenset(_hosts(settings))
        # Clients send the same few names again and again.
        self._knows = lru_cache(maxsize=256)(self._is_known)
        self._own = urlsplit(settings.public_url or "").netloc
        self._origins = frozenset(settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        error = self._fault(scope)
        if error is not None:
            await refuse(error, scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", [])
                own = {name.lower() for name, _ in headers}
                message["headers"] = [*headers, *(one for one in _HEADERS if one[0] not in own)]
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _fault(self, scope: Scope) -> DomainError | None:
        found = dict(scope["headers"])
        host = found.get(b"host", b"").decode("latin-1")
        if not self._knows(host):
            return UnknownHostError(
                "The operator names the hosts of this service in FINETUNE_ALLOWED_HOSTS."
            )
        origin = found.get(b"origin", b"").decode("latin-1")
        if origin in self._origins or (origin and _ANY in self._origins):
            return None
        site = found.get(b"sec-fetch-site")
        is_foreign = site in _OTHER_SITES and not _is_link(scope["method"], found)
        # Behind a proxy that ends TLS our own scheme is not the browser's.
        is_foreign = is_foreign or bool(origin and _place(origin) not in (host, self._own))
        if is_foreign:
            return CrossSiteError("The operator names the sites that may in FINETUNE_CORS_ORIGINS.")
        return None

    def _is_known(self, host: str) -> bool:
        """No browser leaves the header out. An address instead of a name proves that no other
        name was made to lead here."""
        if not host or _ANY in self._hosts:
            return True
        name = _name(host)
        return name in self._hosts or name.endswith(".localhost") or _is_address(name)


CORS: Final[dict[str, Any]] = {
    "allow_methods": ["GET", "POST", "PATCH", "PUT", "DELETE"],
    "allow_headers": ["*"],
    # Pages send an API key themselves. A session is for our own pages.
    "allow_credentials": False,
    "expose_headers": ["ETag", "Location", "Retry-After", "X-Request-Id"],
}
"""For Starlette's CORSMiddleware, which answers what browsers ask before they let a page of
FINETUNE_CORS_ORIGINS use the service."""


def _hosts(settings: Settings) -> Iterable[str]:
    yield "localhost"
    yield settings.host.lower()
    yield socket.gethostname().lower()
    if place := _place(settings.public_url or ""):
        yield _name(place)
    for host in settings.allowed_hosts:
        yield host.lower()


def _name(host: str) -> str:
    """Without the port and a dot at the end."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _place(origin: str) -> str | None:
    """Host and port; None for `null` and for anything that is not a URL."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_link(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a person follows a link or types an address; the site that has the link sees no
    answer."""
    return (
        method == "GET"
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )
