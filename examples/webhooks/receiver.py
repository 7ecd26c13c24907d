"""Receive webhooks: verify the signature, drop doubles, and answer 204 only when the work is done.

The service sends again what was not answered so; nothing is lost when the receiver is stopped.
It listens on PORT (8090) of the loopback: a server that speaks TLS belongs before it.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

LONGEST_BODY = 1_000_000
REMEMBERED = 10_000

Event = dict[str, Any]


class Receiver(ThreadingHTTPServer):
    """Gives each verified event to `handle`, one at a time. `handle` has ten seconds."""

    daemon_threads = True

    def __init__(self, port: int, secret: str, handle: Callable[[Event], None]) -> None:
        super().__init__(("127.0.0.1", port), Request)
        self.webhook = Webhook(secret)
        self.handle = handle
        self.handled: OrderedDict[str, None] = OrderedDict()
        self.lock = threading.Lock()

    def take(self, event_id: str, event: Event) -> None:
        with self.lock:
            if event_id in self.handled:
                return
            self.handle(event)
            self.handled[event_id] = None
            if len(self.handled) > REMEMBERED:
                self.handled.popitem(last=False)


class Request(BaseHTTPRequestHandler):
    server: Receiver
    timeout = 10

    def do_POST(self) -> None:
        self.send_response(self.status())
        self.end_headers()

    def status(self) -> int:
        length = int(self.headers.get("Content-Length", 0))
        if not 0 < length <= LONGEST_BODY:
            return 413
        body = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            event = self.server.webhook.verify(body, headers)
        except WebhookVerificationError:
            return 401
        try:
            self.server.take(headers["webhook-id"], event)
        except Exception as error:  # the service sends it again
            print(f"{event['type']} of {event['data']['id']}: {error}")
            return 503
        return 204

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def serve(handle: Callable[[Event], None]) -> None:
    """Until it is stopped. Reads WEBHOOK_SECRET and PORT."""
    port = int(os.environ.get("PORT", "8090"))
    Receiver(port, os.environ["WEBHOOK_SECRET"], handle).serve_forever()
