"""A proxy in front of the real API that loses answers, or acts at a moment that a test chooses."""

from collections.abc import Callable

import httpx

from tests.support.local_http import BodyReader, LocalServer

Act = Callable[[], object]


class Proxy(LocalServer):
    def __init__(self, target: str) -> None:
        super().__init__(_Handler)
        self.target = httpx.Client(base_url=target, timeout=30)
        self.requests: list[str] = []
        """As `POST /v1/jobs`, without the query."""
        self.before: dict[str, Act] = {}
        """Request → what to do once, before it is passed on."""
        self.lost: dict[str, int] = {}
        """Request → how many answers to lose: the service has done what was asked."""

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
        headers = {name: value for name, value in self.headers.items() if name in _KEPT}
        answer = proxy.target.request(self.command, self.path, content=body, headers=headers)
        if proxy.lost.get(request, 0):
            proxy.lost[request] -= 1
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        return


_KEPT = ("Content-Type", "Idempotency-Key", "Authorization")
