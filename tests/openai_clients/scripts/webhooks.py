"""What a receiver of webhooks does with the events of fine-tuning jobs."""

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest

from tests.openai_clients.scripts.strict import require_exact

SECONDS = 30


class Events:
    """Of the webhook that the script made, verified and parsed by OpenAI's client."""

    def __init__(self) -> None:
        self.secret = ""
        self.received: list[tuple[bytes, Mapping[str, str]]] = []

    def require(self, kind: str, job: str) -> None:
        """Wait until the event has come."""
        deadline = time.monotonic() + SECONDS
        while (kind, job) not in [(e.type, e.data.id) for e in self.parsed()]:
            assert time.monotonic() < deadline, f"no {kind} of {job}: {self.received}"
            time.sleep(0.1)

    def parsed(self) -> list[Any]:
        client = openai.OpenAI(webhook_secret=self.secret)
        found = []
        for body, headers in list(self.received):
            event = client.webhooks.unwrap(body, headers)
            require_exact(json.loads(body), type(event))
            found.append(event)
        return found

    def require_verified(self) -> None:
        """A body that somebody changed is refused."""
        body, headers = self.received[0]
        client = openai.OpenAI(webhook_secret=self.secret)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(body.replace(b"job-", b"jab-"), headers)


@contextmanager
def received_events() -> Iterator[Events]:
    """A receiver on the loopback, for events of jobs that end in the project meanwhile."""
    events = Events()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            events.received.append((body, dict(self.headers.items())))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
        httpx.Client(base_url=os.environ["OPENAI_BASE_URL"]) as service,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        wanted = {"url": url, "events": ["fine_tuning.job.*"]}
        made = service.post("/webhooks", json=wanted).raise_for_status().json()
        events.secret = made["secret"]
        try:
            yield events
        finally:
            service.delete(f"/webhooks/{made['id']}").raise_for_status()
            server.shutdown()
