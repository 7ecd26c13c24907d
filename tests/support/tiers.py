"""The two tiers: `make test` runs the tests that start no process and train no model, and
`make test-all` runs all of them.

The tier of a test follows from its fixtures. One that starts a process, a server or a second
database asks for the fixture `processes`, and so does a test that starts a process by itself. In
the fast tier a test that starts one all the same fails. One that trains a model asks for
`trainings`.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

_STARTS: Final = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "pty.spawn",
    "shared_servers.url_of",
    "subprocess.Popen",
}
# matplotlib runs it for the first figure on a machine, and keeps the list of fonts.
_ONCE_A_MACHINE: Final = "fc-list"
_SLOW: Final = frozenset({"processes", "trainings"})
_watched: list[list[str]] = []
"""What each test that may not start a process has started. One test runs at a time."""


def fast(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests that start no process and train no model."""
    return [item for item in items if is_fast(item)]


def is_fast(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return (
        _SLOW.isdisjoint(getattr(item, "fixturenames", ()))
        # `database_url` asks for the server of each kind when it knows which one.
        and parameters.get("database_url") != "postgres"
    )


@contextmanager
def watched(item: pytest.Item) -> Iterator[None]:
    """Fails a test of the fast tier that starts a process within this block."""
    if item.config.getoption("tier") != "fast":
        yield
        return
    started: list[str] = []
    _watched.append(started)
    try:
        yield
    finally:
        _watched.remove(started)
        if started:  # This says more than what a refused start has led to.
            pytest.fail(started[0])


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS and _watched and arguments[:1] != (_ONCE_A_MACHINE,):
        what = f"{event} {arguments[0]}" if arguments else event
        reason = (
            f"this test starts a process ({what}), so it must ask for the fixture `processes`: "
            '@pytest.mark.usefixtures("processes")'
        )
        _watched[-1].append(reason)
        pytest.fail(reason)


sys.addaudithook(_refuse)
