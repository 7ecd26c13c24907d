"""Rings the doorbell: a message by name, after commit, in bounded time."""

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service import broker
from service.settings import Settings

_MARK = "finetune:holds-our-messages"


class Dispatcher:
    """Built once per process. Never raises when the broker is away: the row will be sent again."""

    def __init__(self, settings: Settings) -> None:
        """Without `redis_url` no message is ever sent, as if the broker were always away."""
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
        if self._app is not None:
            self._app.close()
        if self._probe is not None:
            self._probe.close()
