"""Events and metrics of a job as one stream, in order, without gaps or repetitions."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from service.cli.jobs.streams import Changes
from service.cli.terminal import output
from service.cli.terminal.client import ApiError, Client, Json, UnreachableError
from service.contract.states import ENDED
from service.system import units

_T = TypeVar("_T")
POLL_SECONDS = 1.0
REFRESH_SECONDS = 10.0
"""Why a job waits, and the memory that it uses, change without an event."""
UNREACHABLE_SECONDS = 120.0
"""How long to wait for a service that does not answer: it may be restarting."""
_PAGE: Final = 1000
_AFTER_METRICS: Final = ("checkpoint", "checkpoint_pruned", "artifact", "stage_finished")
"""Among items of one transaction, which have the same time, these come after the metrics."""


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

    @property
    def has_kept(self) -> bool:
        """Whether the next call has something even if nothing happens until then."""
        return bool(self._unread["events"])

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


class Outage:
    """Reports once in UNREACHABLE_SECONDS that the service does not answer: otherwise the last
    output would look current."""

    def __init__(self, say: Callable[[str], None] = output.note) -> None:
        self._say = say
        self._reported_at: float | None = None

    def __call__(self) -> None:
        now = time.monotonic()
        if self._reported_at is None or now - self._reported_at > UNREACHABLE_SECONDS:
            patience = units.duration(UNREACHABLE_SECONDS)
            self._say(f"The service does not answer; trying again for {patience}.")
            self._reported_at = now


def patiently(read: Callable[[], _T], say: Callable[[str], None] = output.note) -> _T:
    """What `read` returns, once the service answers. Raises after UNREACHABLE_SECONDS."""
    began = time.monotonic()
    outage = Outage(say)
    while True:
        try:
            return read()
        except (UnreachableError, ApiError) as error:
            is_passing = isinstance(error, UnreachableError) or error.status >= 500
            if not is_passing or time.monotonic() - began > UNREACHABLE_SECONDS:
                raise
            outage()
            time.sleep(POLL_SECONDS)


def follow(
    client: Client, job_id: str, say: Callable[[str], None] = output.note
) -> Iterator[tuple[Json, list[Json]]]:
    """The job's page and what is new in its history, each second until it has ended; calls `say`
    when the service does not answer. Asks the service only when the job's live stream says that
    something has changed, or too many streams are open."""
    history = History(client, job_id)
    with Changes(client, job_id) as changes:
        while True:
            read_at = time.monotonic()
            job = patiently(lambda: client.get(f"/v1/jobs/{job_id}"), say)
            # The page is read first: the history then has all that led to an end.
            ended = job["state"] in ENDED
            yield job, patiently(history.rest if ended else history.new, say)
            if ended:
                return
            while not _is_time(changes, read_at, has_kept=history.has_kept):
                yield job, []  # countdowns are shown anew


def _is_time(changes: Changes, read_at: float, *, has_kept: bool) -> bool:
    """Whether to read again; waits for a second at most, so that nothing is read more often."""
    changed = changes.happened(POLL_SECONDS)
    since = time.monotonic() - read_at
    if not (changed or has_kept or since > REFRESH_SECONDS):
        return False
    time.sleep(max(0.0, POLL_SECONDS - since))
    return True
