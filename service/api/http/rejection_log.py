"""The log's lines about requests that ended before they reached the app."""

import time
from typing import Final

import structlog

from service.api.http.token_bucket import Bucket
from service.errors import DomainError

_PER_MINUTE: Final = 60.0
_AT_ONCE: Final = 10.0
_log = structlog.stdlib.get_logger("service.api.access")


class RejectionLog:
    """At most this many lines a minute: clients without a key must not be able to fill the disk."""

    def __init__(self) -> None:
        self._bucket = Bucket(_AT_ONCE)
        self._unlogged = 0

    def note(self, client: tuple[str, int] | None, error: DomainError, request_id: str) -> None:
        if self._bucket.take(_PER_MINUTE / 60, time.monotonic()) > 0:
            self._unlogged += 1
            return
        _log.info(
            "request.rejected",
            status=error.status,
            code=error.code,
            client=None if client is None else client[0],
            request_id=request_id,
            unlogged=self._unlogged,
        )
        self._unlogged = 0
