"""One lookup for many concurrent requests."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

Asked = TypeVar("Asked", bound=Hashable)
Found = TypeVar("Found")


class SingleFlight(Generic[Asked, Found]):
    """Concurrent requests with the same key share one lookup, which began after each of them came.

    Those that come while a lookup runs wait for the next one, because the running one may have read
    before a change that they must see. `look_up` runs on a thread;
    as many at once as `limiter` says.
    """

    def __init__(
        self, look_up: Callable[[Asked], Found], limiter: CapacityLimiter | None = None
    ) -> None:
        self._look_up = look_up
        self._limiter = limiter
        self._current: dict[Asked, asyncio.Task[Found]] = {}
        self._next: dict[Asked, asyncio.Task[Found]] = {}

    async def get(self, key: Asked) -> Found:
        """What `look_up` returns or raises."""
        task = self._next.get(key)
        if task is None:
            task = asyncio.create_task(self._begin(key))
            # If all of its requests were cancelled, none retrieves the exception: do it here.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._next[key] = task
        return await asyncio.shield(task)

    async def _begin(self, key: Asked) -> Found:
        if key in self._current:
            await asyncio.wait([self._current[key]])
        mine = self._current[key] = self._next.pop(key)
        try:
            return await to_thread.run_sync(self._look_up, key, limiter=self._limiter)
        finally:
            if self._current[key] is mine:
                del self._current[key]
