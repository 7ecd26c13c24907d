"""Requests share lookups of service.api.http.single_flight, never one that began before them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from service.api.http.single_flight import SingleFlight
from service.errors import DomainError


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Lookup:
    """Waits until it is let through, and counts how often it began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.entered = threading.Semaphore(0)
        self.let = threading.Semaphore(0)

    def __call__(self, authorization: str) -> str:
        self.began.append(authorization)
        number = len(self.began)
        self.entered.release()
        assert self.let.acquire(timeout=10)
        return f"{authorization} {number}"

    async def begins(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=10)


@on_a_loop
async def test_requests_during_a_lookup_share_the_next() -> None:
    lookup = Lookup()
    flights = SingleFlight(lookup)
    first = asyncio.create_task(flights.get("a"))
    await lookup.begins()
    later = [asyncio.create_task(flights.get("a")) for _ in range(5)]
    for _ in range(3):  # until all of them have come, and the next lookup is queued
        await asyncio.sleep(0)
    assert (list(flights._next), lookup.began) == (["a"], ["a"])
    lookup.let.release(2)
    assert await first == "a 1"
    assert await asyncio.gather(*later) == ["a 2"] * 5
    assert lookup.began == ["a", "a"]
    assert not flights._current
    assert not flights._next


@on_a_loop
async def test_other_keys_do_not_wait() -> None:
    lookup = Lookup()
    flights = SingleFlight(lookup)
    both = [asyncio.create_task(flights.get(name)) for name in "ab"]
    await lookup.begins()
    await lookup.begins()
    lookup.let.release(2)
    assert {answer[0] for answer in await asyncio.gather(*both)} == {"a", "b"}


@on_a_loop
async def test_a_cancelled_request_leaves_the_others_theirs() -> None:
    lookup = Lookup()
    flights = SingleFlight(lookup)
    leaves, stays = (asyncio.create_task(flights.get("a")) for _ in range(2))
    await lookup.begins()
    leaves.cancel()
    lookup.let.release(1)
    assert await stays == "a 1"


@on_a_loop
async def test_an_error_is_raised_in_all_that_share_it_and_not_in_the_next() -> None:
    faults = iter([DomainError("no"), None])

    def look_up(_authorization: str) -> None:
        fault = next(faults)
        if fault is not None:
            raise fault

    flights = SingleFlight(look_up)
    both = await asyncio.gather(flights.get("a"), flights.get("a"), return_exceptions=True)
    assert [type(one) for one in both] == [DomainError] * 2
    assert await flights.get("a") is None
