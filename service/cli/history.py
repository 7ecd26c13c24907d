"""Events and metrics of a job as one stream, in order, without gaps or repetitions."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from service.cli import output, units
from service.cli.client import ApiError, Client, Json, UnreachableError
from service.contract.states import ENDED

_T = TypeVar("_T")
POLL_SECONDS = 1.0
UNREACHABLE_SECONDS = 120.0
"""How long to wait for a service that does not answer: it may be restarting."""
_PAGE: Final = 1000
_AFTER_METRICS: Final = ("checkpoint", "checkpoint_pruned", "artifact", "stage_finished")
"""Of what was written in one transaction, and has one time, these come after the metrics."""


class History:
    """Reads what is new at each call of `new`. An event has a `type`, a metric a `kind`.

    The server numbers events and metrics apart and writes both in transactions that follow one
    another. Here metrics are read first: an event that is later than the last of them is kept for
    the next call, because metrics that precede it may have been written in between.
    """

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._path = f"/v1/jobs/{job_id}"
        self._last_seq = {"events": 0, "metrics": 0}
        self._unread: dict[str, list[Json]] = {"events": [], "metrics": []}

    def new(self) -> list[Json]:
        """After an UnreachableError the next call misses nothing."""
        known = self._unread["events"]
        read_before = len(known)
        self._read("metrics")
        self._read("events")
        metrics = self._unread["metrics"]
        until = units.moment(metrics[-1]["at"]) if metrics else None
        ready = known[:read_before]
        kept: list[Json] = []
        for event in known[read_before:]:
            is_ready = until is not None and units.moment(event["at"]) <= until
            (ready if is_ready else kept).append(event)
        return self._taken(ready, kept)

    def rest(self) -> list[Json]:
        """All that is new, of a job that has ended: nothing more will be written. Misses nothing
        after an UnreachableError either."""
        self._read("metrics")
        self._read("events")
        return self._taken(self._unread["events"], [])

    def _taken(self, events: list[Json], kept: list[Json]) -> list[Json]:
        """These events and all unread metrics, in order; `kept` remains for the next call."""
        metrics = self._unread["metrics"]
        self._unread = {"events": kept, "metrics": []}
        return sorted([*events, *metrics], key=_order)

    def _read(self, kind: str) -> None:
        has_more = True
        while has_more:
            page = self._client.get(
                f"{self._path}/{kind}", {"limit": _PAGE, "after": self._last_seq[kind]}
            )
            if page["data"]:
                self._unread[kind] += page["data"]
                self._last_seq[kind] = page["data"][-1]["seq"]
            has_more = page["has_more"]


def _order(item: Json) -> tuple[Any, int]:
    rank = 1 if "kind" in item else 2 if item["type"] in _AFTER_METRICS else 0
    return units.moment(item["at"]), rank


def patiently(read: Callable[[], _T], say: Callable[[str], None] = output.note) -> _T:
    """What `read` returns, once the service answers. Raises after UNREACHABLE_SECONDS."""
    began = time.monotonic()
    is_told = False
    while True:
        try:
            return read()
        except (UnreachableError, ApiError) as error:
            is_passing = isinstance(error, UnreachableError) or error.status >= 500
            if not is_passing or time.monotonic() - began > UNREACHABLE_SECONDS:
                raise
            if not is_told:  # otherwise what was shown last looks as if it were current
                patience = units.duration(UNREACHABLE_SECONDS)
                say(f"The service does not answer; trying again for {patience}.")
                is_told = True
            time.sleep(POLL_SECONDS)


def follow(
    client: Client, job_id: str, say: Callable[[str], None] = output.note
) -> Iterator[tuple[Json, list[Json]]]:
    """The job's page and what is new in its history, until it has ended; `say` is told when the
    service does not answer."""
    history = History(client, job_id)
    while True:
        job = patiently(lambda: client.get(f"/v1/jobs/{job_id}"), say)
        # The page is read first: the history then has all that led to an end.
        ended = job["state"] in ENDED
        yield job, patiently(history.rest if ended else history.new, say)
        if ended:
            return
        time.sleep(POLL_SECONDS)
