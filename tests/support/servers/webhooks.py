"""A receiver of webhooks on the loopback, and endpoints that lead to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.settings import Settings
from service.store.database import Database
from service.store.webhooks import endpoints
from service.system.secret_box import SecretBox
from service.webhooks import signatures
from service.webhooks.requests import Requests
from service.webhooks.sender import WebhookSender
from tests.support.servers.local_http import BodyReader, LocalServer
from tests.support.servers.services import wait_until

Received = tuple[dict[str, str], str]
"""The headers, with names in lower case, and the body."""


class Receiver(LocalServer):
    """Keeps what it receives; `answer` returns the status, and may wait."""

    def __init__(self, answer: Callable[[int], int] = lambda _count: 204) -> None:
        super().__init__(_Handler)
        self.answer = answer
        self.received: list[Received] = []
        self.lock = threading.Lock()

    def ids(self) -> list[str]:
        with self.lock:
            return [headers["webhook-id"] for headers, _ in self.received]


class _Handler(BodyReader):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.read_body().decode()
        owner: Receiver = self.server.owner  # type: ignore[attr-defined]
        with owner.lock:
            owner.received.append(({k.lower(): v for k, v in self.headers.items()}, body))
            count = len(owner.received)
        status = owner.answer(count)
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", owner.url)
        content = b"" if status == 204 else b"so it is"
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def endpoint(
    database: Database,
    settings: Settings,
    url: str,
    *,
    events: tuple[str, ...] = ("*",),
    project: str = "default",
) -> tuple[str, str]:
    """A webhook's id and its secret."""
    secret = signatures.new_secret()
    box = SecretBox(settings.secrets_file)
    given = {"url": url, "events": list(events), "description": None}
    with database.write() as session:
        row = endpoints.create(session, project, given, lambda p, n: box.seal(p, n, secret))
        return row.id, secret


@contextmanager
def sending(
    database: Database, settings: Settings, try_seconds: float = 5.0
) -> Iterator[WebhookSender]:
    """A sender that runs meanwhile."""
    requests = Requests(settings, try_seconds=try_seconds)
    sender = WebhookSender(database, settings, requests, poll_seconds=0.02)
    stop = threading.Event()
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    try:
        yield sender
    finally:
        stop.set()
        thread.join(15)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    wait_until(condition, seconds, "what the test waits for")
