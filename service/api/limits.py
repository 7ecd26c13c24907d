"""How many requests, and how many uploads, are in progress at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import OverloadedError, TooManyUploadsError, render

_EXEMPT = "/health/"


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
    """Answers 503 while `most` requests are in progress. Health is answered all the same."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app = app
        self.most = most
        self._current = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_EXEMPT):
            await self.app(scope, receive, send)
        elif self._current >= self.most:
            error = OverloadedError("Try again in a moment.")
            response = render(scope["path"], scope["state"]["request_id"], error)
            await response(scope, receive, send)
        else:
            self._current += 1
            try:
                await self.app(scope, receive, send)
            finally:
                self._current -= 1


class Waiters:
    """How many requests wait at once for something that others make."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._current = 0

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Whether there is room for one more."""
        if self._current >= self._most:
            yield False
            return
        self._current += 1
        try:
            yield True
        finally:
            self._current -= 1
