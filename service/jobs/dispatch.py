"""Sends wake-up messages to the broker: after commit, in bounded time."""

import queue as queues
import threading
import time
from contextlib import suppress
from typing import Final

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from service import broker
from service.contract.routing import Message
from service.settings import Settings

log = structlog.get_logger(__name__)

_MARK = "finetune:holds-our-messages"
_BACKLOG: Final = 64
"""Beyond it new jobs arrive faster than they could start; the reconciler sends the rest."""
_HEAD_START: Final = 5.0
_CPU_SHARE: Final = 0.1
"""Share of this process's CPU time for sending; a burst of requests needs the rest."""
_LONGEST_PAUSE: Final = 0.02
_DRAIN_SECONDS: Final = 2.0


class Dispatcher:
    """One per process. Never raises when the broker is unreachable: the reconciler sends again."""

    def __init__(self, settings: Settings) -> None:
        """Without `redis_url` no message is ever sent, as if the broker were unreachable."""
        self._soon: queues.Queue[Message | None] = queues.Queue(_BACKLOG)
        self._sender: threading.Thread | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.head_start = 0.0 if settings.redis_url is None else _HEAD_START
        """Seconds that `enqueue_soon` has before the reconciler sends the message."""
        self.republish_seconds = settings.republish_seconds
        """Seconds for a worker to claim a job before the reconciler sends its message again."""
        self._app = None
        self._probe = None
        if settings.redis_url is not None:
            url = settings.redis_url.get_secret_value()
            self._app = broker.make_app(url, publisher=True)
            self._probe = redis.Redis.from_url(
                url,
                socket_connect_timeout=broker.CONNECT_SECONDS,
                socket_timeout=broker.ANSWER_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )

    def enqueue(self, message: Message) -> bool:
        """Whether the broker took the message; takes 2 s at most."""
        return self._app is not None and broker.enqueue(self._app, message)

    def enqueue_soon(self, message: Message) -> None:
        """Like `enqueue`, on a background thread; dropped if that cannot keep up or stops."""
        if self._app is None:
            return
        with self._lock:
            if self._sender is None:
                self._sender = threading.Thread(
                    target=self._send_queued, name="message-sender", daemon=True
                )
                self._sender.start()
        try:
            self._soon.put_nowait(message)
        except queues.Full:
            log.debug("message.left_to_reconciler", kind=message.kind, id=message.id)

    def _send_queued(self) -> None:
        while (message := self._soon.get()) is not None:
            begun = time.thread_time()
            if not self.enqueue(message):
                log.warning("broker.unreachable", kind=message.kind, id=message.id)
            pause = (time.thread_time() - begun) * (1 / _CPU_SHARE - 1)
            self._closing.wait(min(pause, _LONGEST_PAUSE))

    def ping(self) -> bool:
        """Whether the broker answers."""
        if self._probe is None:
            return False
        try:
            return bool(self._probe.ping())
        except redis.RedisError:
            return False

    def was_emptied(self) -> bool:
        """Whether the broker has lost its messages since the last call, by a restart for example.

        A marker key tells: the first caller that finds it missing sets it again and gets True.
        """
        if self._probe is None:
            return False
        try:
            return bool(self._probe.set(_MARK, 1, nx=True))
        except redis.RedisError:
            return False

    def close(self) -> None:
        """Waiting messages are sent first, if the broker is reachable."""
        self._closing.set()
        if self._sender is not None:
            with suppress(queues.Full):
                self._soon.put(None, timeout=_DRAIN_SECONDS)
                self._sender.join(_DRAIN_SECONDS)
        if self._app is not None:
            self._app.close()
        if self._probe is not None:
            self._probe.close()
