"""How many requests, and how many uploads, are in progress at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems.errors import (
    OverloadedError,
    TooManyStreamsError,
    TooManyUploadsError,
    refuse,
)

_EXEMPT = "/health/"
LIVE_STREAM: Final = "live_stream"
"""In the state of a request: the feed that its answer is taken from."""
MOST_UPLOADS: Final = 16
MOST_REQUESTS: Final = 200
"""Of an API process, at once."""


class UploadSlots:
    def __init__(self, most: int) -> None:
        self.most = most
        self._current = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Raises TooManyUploadsError."""
        if self._current >= self.most:
            raise TooManyUploadsError(
                f"{self.most} files are being uploaded. Try again in a moment."
            )
        self._current += 1
        try:
            yield
        finally:
            self._current -= 1


class ConcurrencyLimit:
    """Answers 503 while `most` requests are in progress, except to health checks."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app = app
        self.most = most
        self._current = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_EXEMPT):
            await self.app(scope, receive, send)
        elif self._current >= self.most:
            await refuse(OverloadedError("Try again in a moment."), scope, receive, send)
        else:
            await self._counted(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A live stream counts until it begins: from then on StreamSlots counts it."""
        self._current += 1
        is_counted = True

        async def send_and_uncount(message: Message) -> None:
            nonlocal is_counted
            if message["type"] == "http.response.start" and scope["state"].get(LIVE_STREAM):
                self._current -= is_counted
                is_counted = False
            await send(message)

        try:
            await self.app(scope, receive, send_and_uncount)
        finally:
            self._current -= is_counted


class StreamSlots:
    """How many live streams are open at once; of these one project has four fifths at most, and
    one key half."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of_keys: Counter[str] = Counter()
        self._of_projects: Counter[str] = Counter()
        self._open = 0

    @contextmanager
    def take(self, key_id: str | None, project: str | None) -> Iterator[None]:
        """Raises TooManyStreamsError. Without a key: the principal of a service that has none.
        Without a project: an operator's, which sees all projects."""
        self._require_room(key_id, project)
        self._count(key_id, project, 1)
        try:
            yield
        finally:
            self._count(key_id, project, -1)

    def _require_room(self, key_id: str | None, project: str | None) -> None:
        of_key, of_project = max(1, self.most // 2), max(1, self.most * 4 // 5)
        if self._open >= self.most:
            full, whose = self.most, "of all users together"
        elif project is not None and self._of_projects[project] >= of_project:
            full, whose = of_project, "of this project"
        elif key_id is not None and self._of_keys[key_id] >= of_key:
            full, whose = of_key, "of this key"
        else:
            return
        raise TooManyStreamsError(
            f"{full} live streams {whose} are open. Close some, or read the job's events by pages."
        )

    def _count(self, key_id: str | None, project: str | None, change: int) -> None:
        self._open += change
        for counts, name in ((self._of_keys, key_id), (self._of_projects, project)):
            if name is None:
                continue
            counts[name] += change
            if not counts[name]:
                del counts[name]


class Waiters:
    """How many requests wait at once for something that others make."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._current = 0

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Whether there is room for one more."""
        if self._current >= self.most:
            yield False
            return
        self._current += 1
        try:
            yield True
        finally:
            self._current -= 1
