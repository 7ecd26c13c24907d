"""Rings the doorbell: a message by name, after commit, in bounded time."""

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
from service.settings import Settings

log = structlog.get_logger(__name__)

_MARK = "finetune:holds-our-messages"
_BACKLOG: Final = 64
"""Beyond it new jobs come faster than they could start: the reconciler rings for the rest."""
_HEAD_START: Final = 5.0
_SHARE: Final = 0.1
"""Of the time that this process can compute, which a burst of new jobs needs for its answers."""
_LONGEST_PAUSE: Final = 0.02
_LAST_RINGS_SECONDS: Final = 2.0


class Dispatcher:
    """Built once per process. Never raises when the broker is away: the row will be sent again."""

    def __init__(self, settings: Settings) -> None:
        """Without `redis_url` no message is ever sent, as if the broker were always away."""
        self._soon: queues.Queue[tuple[str, str, int] | None] = queues.Queue(_BACKLOG)
        self._bell: threading.Thread | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.head_start = 0.0 if settings.redis_url is None else _HEAD_START
        """Seconds that `wake_soon` has before the reconciler rings."""
        self.republish_seconds = settings.republish_seconds
        """Until the reconciler sends a message again that was sent here: a worker has this long."""
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

    def wake(self, job_id: str, queue: str, priority: int) -> bool:
        """Whether the broker took the message; takes 2 s at most."""
        return self._app is not None and broker.ring(self._app, job_id, queue, priority)

    def wake_soon(self, job_id: str, queue: str, priority: int) -> None:
        """As `wake`, on a thread of its own; dropped when it cannot keep up, or at the end."""
        if self._app is None:
            return
        with self._lock:
            if self._bell is None:
                self._bell = threading.Thread(target=self._ring, name="bell", daemon=True)
                self._bell.start()
        try:
            self._soon.put_nowait((job_id, queue, priority))
        except queues.Full:
            log.debug("the reconciler will ring", job_id=job_id)

    def _ring(self) -> None:
        while (message := self._soon.get()) is not None:
            begun = time.thread_time()
            if not self.wake(*message):
                log.warning(
                    "the broker is away; the reconciler will send the job", job_id=message[0]
                )
            pause = (time.thread_time() - begun) * (1 / _SHARE - 1)
            self._closing.wait(min(pause, _LONGEST_PAUSE))

    def ping(self) -> bool:
        """Whether the broker answers."""
        if self._probe is None:
            return False
        try:
            return bool(self._probe.ping())
        except redis.RedisError:
            return False

    def lost_all(self) -> bool:
        """Whether the broker has forgotten all it held since anyone asked last, as by a restart.

        A mark among its keys tells it; the first who finds it gone sets it again and hears True.
        """
        if self._probe is None:
            return False
        try:
            return bool(self._probe.set(_MARK, 1, nx=True))
        except redis.RedisError:
            return False

    def close(self) -> None:
        """What waits is rung first, if the broker is there."""
        self._closing.set()
        if self._bell is not None:
            with suppress(queues.Full):
                self._soon.put(None, timeout=_LAST_RINGS_SECONDS)
                self._bell.join(_LAST_RINGS_SECONDS)
        if self._app is not None:
            self._app.close()
        if self._probe is not None:
            self._probe.close()
