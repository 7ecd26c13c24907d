"""Performs the steps of flows over HTTP: one after the other, or with `await`."""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar, cast

import httpx
from pydantic import SecretStr

from finetune_client.errors import InvalidArgumentError
from finetune_client.http.bodies import M, query, read
from finetune_client.http.calls import PAGE, Call, get
from finetune_client.http.flows import (
    Flow,
    Item,
    Json,
    Policy,
    Read,
    Send,
    Sleep,
    Step,
    Work,
    json,
    pages,
)

T = TypeVar("T")
_LAST_PORT: Final = 65535
_CONNECT_SECONDS: Final = 5.0


class _Transport:
    """What both transports share: where to send, and how a call becomes a request."""

    _http: httpx.Client | httpx.AsyncClient

    def __init__(
        self,
        base_url: str,
        api_key: SecretStr | None,
        project: str | None,
        timeout: float,
        policy: Callable[[str], Policy],
    ) -> None:
        """InvalidArgumentError for an address, a key or a project that cannot be used."""
        url = _checked_url(base_url)
        self._seconds = timeout
        self.policy = policy(str(url.copy_with(userinfo=b"")))
        self._options: dict[str, Any] = {
            "base_url": url,
            "headers": _headers(api_key, project),
            "timeout": _timeout(timeout),
            # Proxy settings are for the internet, not for the service.
            "trust_env": False,
            # Loading the certificates takes 30 ms; a plain address needs none.
            "verify": url.scheme == "https" and _certificates(),
        }

    def _request(self, call: Call) -> httpx.Request:
        arguments: dict[str, Any] = {"params": call.params, "headers": dict(call.headers)}
        if call.json is not None:
            arguments["json"] = call.json
        seconds = min(call.timeout or self._seconds, call.most_seconds)
        if seconds != self._seconds:
            arguments["timeout"] = _timeout(seconds)
        if call.upload is not None:
            file, progress = call.upload.file, call.upload.progress
            file.seek(0)
            sent = file if progress is None else _Counted(file, progress)
            arguments["files"] = {"file": (call.upload.name, sent)}
            arguments["data"] = {"purpose": call.upload.purpose, **call.upload.fields}
        try:
            return self._http.build_request(call.method, call.path, **arguments)
        except UnicodeEncodeError as error:
            wrong = error.object[error.start : error.end]
            raise InvalidArgumentError(
                f"the request holds {wrong!r}, which is not Unicode text"
            ) from error
        except ValueError as error:
            raise InvalidArgumentError("NaN and the infinities are not numbers of JSON") from error
        except TypeError as error:
            raise InvalidArgumentError(f"the request cannot be sent as JSON: {error}") from error

    def _require_open(self) -> None:
        if self._http.is_closed:
            raise InvalidArgumentError("the client is closed: make another one")


class SyncTransport(_Transport):
    _http: httpx.Client

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._http = httpx.Client(**self._options)

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        """Perform a flow to its end; its result."""
        steps = self._steps(flow)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(T, end.value)

    def iterate(self, flow: Flow[Any]) -> Iterator[Any]:
        """The items of a flow."""
        yield from self._steps(flow)

    def _steps(self, flow: Flow[T]) -> Generator[Any, None, T]:
        opened: dict[httpx.Response, Iterator[bytes]] = {}
        resume: Callable[[], Step] = partial(next, flow)
        try:
            while True:
                try:
                    step = resume()
                except StopIteration as end:
                    return cast(T, end.value)
                if isinstance(step, Item):
                    yield step.value
                    resume = partial(next, flow)
                    continue
                try:
                    resume = partial(flow.send, self._perform(step, opened))
                except httpx.RequestError as error:
                    resume = partial(flow.throw, error)
        finally:
            flow.close()
            _close_all(opened)

    def _perform(self, step: Step, opened: dict[httpx.Response, Iterator[bytes]]) -> Any:
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, Work):
            return step.function()
        if isinstance(step, Read):
            return next(opened[step.answer], b"")
        assert isinstance(step, Send)
        if step.streams:  # a flow reads one body at a time
            _close_all(opened)
        self._require_open()
        answer = self._http.send(self._request(step.call), stream=step.streams)
        if step.streams:
            opened[answer] = answer.iter_bytes()
        return answer


class AsyncTransport(_Transport):
    _http: httpx.AsyncClient

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._http = httpx.AsyncClient(**self._options)

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """Perform a flow to its end; its result."""
        end: list[T] = []
        async with aclosing(self._steps(flow, end.append)) as steps:
            async for _item in steps:
                pass
        return end[0]

    async def iterate(self, flow: Flow[Any]) -> AsyncGenerator[Any, None]:
        """The items of a flow."""
        # A caller that leaves its loop early closes this generator, which must close the other.
        async with aclosing(self._steps(flow, lambda _result: None)) as steps:
            async for item in steps:
                yield item

    async def _steps(self, flow: Flow[T], end: Callable[[T], None]) -> AsyncGenerator[Any, None]:
        opened: dict[httpx.Response, AsyncIterator[bytes]] = {}
        resume: Callable[[], Step] = partial(next, flow)
        try:
            while True:
                try:
                    step = resume()
                except StopIteration as stopped:
                    end(stopped.value)
                    return
                if isinstance(step, Item):
                    yield step.value
                    resume = partial(next, flow)
                    continue
                try:
                    resume = partial(flow.send, await self._perform(step, opened))
                except httpx.RequestError as error:
                    resume = partial(flow.throw, error)
        finally:
            flow.close()
            await _aclose_all(opened)

    async def _perform(self, step: Step, opened: dict[httpx.Response, AsyncIterator[bytes]]) -> Any:
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Work):
            return await asyncio.to_thread(step.function)
        if isinstance(step, Read):
            return await anext(opened[step.answer], b"")
        assert isinstance(step, Send)
        if step.streams:
            await _aclose_all(opened)
        self._require_open()
        answer = await self._http.send(self._request(step.call), stream=step.streams)
        if step.streams:
            opened[answer] = answer.aiter_bytes()
        return answer


class Resource:
    """A part of the client's methods."""

    def __init__(self, transport: SyncTransport) -> None:
        self._transport = transport
        self._policy = transport.policy

    def _json(self, call: Call) -> Json:
        return self._transport.run(json(self._policy, call))

    def _read(self, model: type[M], call: Call) -> M:
        return read(model, self._json(call))

    def _pages(
        self,
        model: type[M],
        path: str,
        cursor: str = "id",
        *,
        limit: int | None = PAGE,
        **filters: Any,
    ) -> Iterator[M]:
        """Every item of a paged list; `cursor` names the field that the next page starts after."""
        return self._transport.iterate(
            pages(
                self._policy,
                get(path, query(limit=limit, **filters)),
                cursor,
                partial(read, model),
            )
        )


class AsyncResource:
    """As `Resource`, with methods to await."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._policy = transport.policy

    async def _json(self, call: Call) -> Json:
        return await self._transport.run(json(self._policy, call))

    async def _read(self, model: type[M], call: Call) -> M:
        return read(model, await self._json(call))

    def _pages(
        self,
        model: type[M],
        path: str,
        cursor: str = "id",
        *,
        limit: int | None = PAGE,
        **filters: Any,
    ) -> AsyncIterator[M]:
        return self._transport.iterate(
            pages(
                self._policy,
                get(path, query(limit=limit, **filters)),
                cursor,
                partial(read, model),
            )
        )


def _close_all(opened: dict[httpx.Response, Iterator[bytes]]) -> None:
    while opened:
        opened.popitem()[0].close()


async def _aclose_all(opened: dict[httpx.Response, AsyncIterator[bytes]]) -> None:
    while opened:
        await opened.popitem()[0].aclose()


class _Counted:
    """A file that reports what is read of it; httpx needs its descriptor for the length."""

    def __init__(self, file: BinaryIO, progress: Callable[[int], None]) -> None:
        self._file = file
        self._progress = progress

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._progress(len(block))
        return block


def _timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))


def _certificates() -> ssl.SSLContext | bool:
    """The authorities that the environment names, as for other programs: many services at home have
    a certificate of their own. Else those of httpx."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not (file or folder):
        return True
    try:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    except OSError as error:
        raise InvalidArgumentError(f"SSL_CERT_FILE or SSL_CERT_DIR: {error}") from error


def _headers(key: SecretStr | None, project: str | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {_checked_key(key)}"} if key else {}
    if project is not None:
        if not (project.isascii() and project.isprintable()):
            raise InvalidArgumentError("the project holds a character that no project's name has")
        headers["FineTune-Project"] = project
    return headers


def _checked_url(text: str) -> httpx.URL:
    """InvalidArgumentError without the text, which may hold a password."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidArgumentError(f"FINETUNE_URL is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > _LAST_PORT:
        raise InvalidArgumentError("FINETUNE_URL must be http://HOST:PORT or https://HOST")
    return url


def _checked_key(key: SecretStr) -> str:
    """The key without the line end of its file: an error of httpx would show the key."""
    text = key.get_secret_value().strip()
    if not (text.isascii() and text.isprintable()):
        raise InvalidArgumentError("FINETUNE_API_KEY holds a character that no key has")
    return text
