"""How requests share a look at who sent them: none is older than the request that it answers."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from service.api.middleware import _Looks
from service.errors import DomainError


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Door:
    """A look that waits until it is let through; counts and says how often it began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.knocked = threading.Semaphore(0)
        self.let = threading.Semaphore(0)

    def __call__(self, authorization: str) -> str:
        self.began.append(authorization)
        number = len(self.began)
        self.knocked.release()
        assert self.let.acquire(timeout=10)
        return f"{authorization} {number}"

    async def begins(self) -> None:
        assert await asyncio.to_thread(self.knocked.acquire, timeout=10)


@on_a_loop
async def test_those_that_come_during_a_look_share_the_next() -> None:
    door = Door()
    looks = _Looks(door)
    first = asyncio.create_task(looks.of("a"))
    await door.begins()
    later = [asyncio.create_task(looks.of("a")) for _ in range(5)]
    for _ in range(3):  # each of them has come, and the look that they share has been made
        await asyncio.sleep(0)
    assert (list(looks._next), door.began) == (["a"], ["a"])
    door.let.release(2)
    assert await first == "a 1"
    assert await asyncio.gather(*later) == ["a 2"] * 5
    assert door.began == ["a", "a"]
    assert not looks._current
    assert not looks._next


@on_a_loop
async def test_others_do_not_wait() -> None:
    door = Door()
    looks = _Looks(door)
    both = [asyncio.create_task(looks.of(name)) for name in "ab"]
    await door.begins()
    await door.begins()
    door.let.release(2)
    assert {answer[0] for answer in await asyncio.gather(*both)} == {"a", "b"}


@on_a_loop
async def test_one_that_goes_leaves_the_others_theirs() -> None:
    door = Door()
    looks = _Looks(door)
    gone, stays = (asyncio.create_task(looks.of("a")) for _ in range(2))
    await door.begins()
    gone.cancel()
    door.let.release(1)
    assert await stays == "a 1"


@on_a_loop
async def test_a_fault_is_everyones_and_not_the_nexts() -> None:
    faults = iter([DomainError("no"), None])

    def look(_authorization: str) -> None:
        fault = next(faults)
        if fault is not None:
            raise fault

    looks = _Looks(look)
    both = await asyncio.gather(looks.of("a"), looks.of("a"), return_exceptions=True)
    assert [type(one) for one in both] == [DomainError] * 2
    assert await looks.of("a") is None
