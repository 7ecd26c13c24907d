"""A proxy in front of the real API that loses answers, or acts at a moment that a test chooses."""

from collections.abc import Callable
from typing import Final

import httpx

from tests.support.servers.local_http import BodyReader, LocalServer

Act = Callable[[], object]
PASSED: Final = 0
LOST: Final = None
"""The service has done what was asked, but its answer does not arrive."""


class Proxy(LocalServer):
    def __init__(self, target: str) -> None:
        super().__init__(_Handler)
        self.target = httpx.Client(base_url=target, timeout=30, verify=False)
        self.requests: list[str] = []
        """As `POST /v1/jobs`, without the query."""
        self.before: dict[str, Act] = {}
        """Request → what to do once, before it is passed on."""
        self.fates: dict[str, list[int | None]] = {}
        """Request → what becomes of the next ones: LOST, PASSED, or the status that they are
        answered with in place of the service."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.target.close()


class _Handler(BodyReader):
    def _pass_on(self) -> None:
        proxy = self.server.owner  # type: ignore[attr-defined]
        request = f"{self.command} {self.path.partition('?')[0]}"
        proxy.requests.append(request)
        body = self.read_body()
        if act := proxy.before.pop(request, None):
            act()
        fates = proxy.fates.get(request)
        fate = fates.pop(0) if fates else PASSED
        if fate:
            self._answer(fate, {"retry-after-ms": "5"}, b"{}")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() in _KEPT}
        answer = proxy.target.request(self.command, self.path, content=body, headers=headers)
        if fate is LOST:
            self.close_connection = True
            return
        given = {name: value for name, value in answer.headers.items() if name in _RETURNED}
        self._answer(answer.status_code, given, answer.content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        return


_RETURNED = (
    "content-type",
    "x-request-id",
    "openai-processing-ms",
    "x-should-retry",
    "retry-after",
)
_KEPT = ("content-type", "idempotency-key", "authorization", "x-stainless-retry-count")
