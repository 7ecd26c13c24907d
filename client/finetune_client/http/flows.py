"""What the client does, without saying how it waits: each flow yields steps and gets their results.

`Client` and `AsyncClient` perform the same steps, one of them with `await`.
"""

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import httpx

from finetune_client import errors
from finetune_client.http import calls, retries
from finetune_client.http.calls import Call

T = TypeVar("T")
Json = dict[str, Any]
ENDED: Final = ("succeeded", "failed", "cancelled")
UNFINISHED: Final = ("queued", "running")
PASSING: Final = (errors.APIConnectionError, errors.ServerError, errors.RateLimitError)
"""Errors that a long wait tolerates."""
PATIENCE: Final = 120.0
"""Seconds that a long wait outlasts a service that does not answer: it may be restarting."""


@dataclass(frozen=True)
class Send:
    """Send it. The result is the httpx.Response, with its body unless `streams`."""

    call: Call
    streams: bool = False


@dataclass(frozen=True)
class Read:
    """The next part of a streamed body; empty at its end."""

    answer: httpx.Response


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Work:
    """Something that takes time on this machine; an asynchronous client does it in a thread."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Item:
    """An item for the caller of a flow that is iterated over."""

    value: Any


Step = Send | Read | Sleep | Work | Item
Flow = Generator[Step, Any, T]


@dataclass(frozen=True)
class Policy:
    """How a client sends: `url` is what errors name, `longest_wait` is in seconds. A service that
    asks for a longer wait is not asked again."""

    url: str
    max_retries: int
    longest_wait: float = 60.0


def answered(policy: Policy, call: Call, *, streams: bool = False) -> Flow[httpx.Response]:
    """The answer of a request that is sent again where that is safe. Raises APIError and
    APIConnectionError."""
    attempt = 0
    while True:
        failure: errors.FineTuneError
        try:
            answer: httpx.Response = yield Send(call, streams)
            if answer.has_redirect_location:
                raise errors.UnexpectedAnswerError(
                    f"{policy.url} redirects to {answer.headers['Location']}: set FINETUNE_URL to "
                    "the address of the service itself"
                )
            if not answer.is_error:
                return answer
            failure = refused = errors.of_answer((yield from _whole(answer)))
            may_repeat = retries.after_answer(refused, is_repeatable=call.is_repeatable)
            wait = retries.seconds(attempt, answer.headers)
        except httpx.RequestError as error:
            failure = unreachable(policy, error)
            may_repeat = call.is_repeatable or isinstance(error, retries.NEVER_SENT)
            wait = retries.seconds(attempt)
        if not may_repeat or attempt >= policy.max_retries or wait > policy.longest_wait:
            raise failure
        yield Sleep(wait)
        attempt += 1


def _whole(answer: httpx.Response) -> Flow[httpx.Response]:
    """The answer to an error with at most the first megabyte of its body."""
    if answer.is_closed:
        return answer
    body = b""
    while len(body) < 1024**2:
        part: bytes = yield Read(answer)
        if not part:
            break
        body += part
    kept = {name: value for name, value in answer.headers.items() if name != "content-encoding"}
    return httpx.Response(answer.status_code, headers=kept, content=body)


def unreachable(policy: Policy, error: httpx.RequestError) -> errors.APIConnectionError:
    kind = (
        errors.APITimeoutError
        if isinstance(error, httpx.TimeoutException)
        else errors.APIConnectionError
    )
    return kind(
        f"no answer from {policy.url} ({error}). Start it with `finetune up`, or set FINETUNE_URL."
    )


def json(policy: Policy, call: Call) -> Flow[Json]:
    """The answer's document. Raises UnexpectedAnswerError too."""
    answer = yield from answered(policy, call)
    try:
        content = answer.json()
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise errors.UnexpectedAnswerError(
            f"{policy.url} does not answer like the service: does FINETUNE_URL name another server?"
        )
    return content


def pages(policy: Policy, call: Call, cursor: str, read: Callable[[Json], T]) -> Flow[None]:
    """Every item of a paged list; `cursor` names the field that the next page starts after."""
    while True:
        page = yield from json(policy, call)
        items = page.get("data")
        if not isinstance(items, list) or (page.get("has_more") and not items):
            raise errors.UnexpectedAnswerError(f"{policy.url} does not answer with a list")
        for item in items:
            yield Item(read(item))
        if not page.get("has_more"):
            return
        after = {"after": items[-1][cursor]}
        call = replace(call, params={**(call.params or {}), **after})


def patiently(policy: Policy, call: Call, most: float = math.inf) -> Flow[Json]:
    """As `json`, but outlasts a service that does not answer, or not now, for PATIENCE seconds, or
    `most` if that is less."""
    patience = min(most, PATIENCE)
    began = time.monotonic()
    attempt = 0
    while True:
        try:
            return (yield from json(replace(policy, max_retries=0), call))
        except PASSING as error:
            left = patience - (time.monotonic() - began)
            if left <= 0:
                raise
            headers = error.headers if isinstance(error, errors.APIError) else None
        yield Sleep(min(retries.seconds(attempt, headers), left))
        attempt += 1


def ended(
    policy: Policy,
    job_id: str,
    poll: float,
    timeout: float | None,
    show: Callable[[Json], None],
    path: Callable[[str], str] = calls.job,
) -> Flow[Json]:
    """The job's page once it has ended; `show` is called with each page. Raises WaitTimeoutError
    after `timeout` seconds. With `path=calls.search` the same of a search."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    late = f"{job_id} has not ended within {timeout:g} s" if timeout is not None else ""
    while True:
        left = deadline - time.monotonic()
        # The first request has its own time, so that a wait of 0 s asks once.
        call = calls.get(path(job_id), most_seconds=max(left, 1.0))
        try:
            page = yield from patiently(policy, call, left)
        except PASSING as error:
            if time.monotonic() < deadline:
                raise
            raise errors.WaitTimeoutError(f"{late}: {error}") from error
        if "state" not in page:
            raise errors.UnexpectedAnswerError(
                f"{policy.url} does not answer with the page of {job_id}"
            )
        show(page)
        if page["state"] in ENDED:
            return page
        left = deadline - time.monotonic()
        if left <= 0:
            raise errors.WaitTimeoutError(f"{late}; it is {page['state']}")
        yield Sleep(min(poll, left))


def finished(policy: Policy, call: Call, path: str, timeout: float) -> Flow[Json]:
    """What `call` begins, once it has ended; `path` is where it can be read. Raises
    WaitTimeoutError."""
    deadline = time.monotonic() + timeout
    page = yield from json(policy, call)
    while page.get("state") in UNFINISHED:
        left = deadline - time.monotonic()
        if left <= 0:
            reason = page.get("waiting") or f"it is {page['state']}"
            raise errors.WaitTimeoutError(f"{page['id']} has not ended in {timeout:g} s: {reason}")
        yield Sleep(min(1.0, left))
        page = yield from patiently(policy, calls.get(f"{path}/{page['id']}"))
    return page


def events(
    policy: Policy, job_id: str, after: int, poll: float, read: Callable[[Json], T]
) -> Flow[None]:
    """The job's events after the one with the number `after`, until it has ended: each once."""
    while True:
        # The page is read first: the events then have all that led to an end.
        page = yield from patiently(policy, calls.get(calls.job(job_id)))
        has_more = True
        while has_more:
            params = {"after": after, "limit": calls.MOST_EVENTS}
            found = yield from patiently(policy, calls.get(calls.job(job_id, "events"), params))
            for event in found["data"]:
                after = event["seq"]
                yield Item(read(event))
            has_more = found["has_more"]
        if page["state"] in ENDED:
            return
        yield Sleep(poll)


def log(
    policy: Policy, job_id: str, offset: int, poll: float, read: Callable[[Json], T]
) -> Flow[None]:
    """The parts of the job's log from byte `offset` on, until it has ended."""
    while True:
        part = yield from patiently(policy, calls.log_part(job_id, offset))
        if part["content"]:
            yield Item(read(part))
        offset = part["next_offset"]
        if offset < part["size"]:
            continue
        if part["eof"]:
            return
        yield Sleep(poll)
