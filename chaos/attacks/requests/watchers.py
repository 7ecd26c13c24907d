"""SIGKILLs of the API while many watch a running job: each watcher receives every event once."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from chaos.attacks.processes.kills import kill_one
from chaos.rows import Report, Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import stub_body
from tests.support.live_streams import messages

_CALM_SECONDS: Final = 1.5
_RECONNECT_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 60.0


def run(seed: int, scale: Scale) -> Row:
    """Kill the API at random moments; the watchers reconnect by the last id."""
    kills, many = scale.pick(short=4, full=50), scale.pick(short=6, full=24)
    moments = random.Random(seed)
    with (
        timed("SIGKILL of the API that sends streams", "each watcher has 1..N") as report,
        running(stubs=True, database=scale.pick(short="sqlite", full="postgres")) as stack,
    ):
        job_id = stack.submit(stub_body(steps=100_000, seconds=0.1))
        url = f"{stack.http.base_url}/v1/jobs/{job_id}/events/stream"
        watchers = [_Watcher(url, moments.random()) for _ in range(many)]
        with _watching(watchers):
            for _ in range(kills):
                stack.request("GET", "/health/live")
                time.sleep(moments.uniform(0.0, _CALM_SECONDS))
                kill_one(stack, "api", moments)
            stack.request("POST", f"/v1/jobs/{job_id}/cancel")
            stack.wait_for_ends([job_id])
            until = time.monotonic() + _PATIENCE_SECONDS
            while any(not each.is_done for each in watchers) and time.monotonic() < until:
                stack.revive()
                time.sleep(0.1)
        _compare(report, stack, job_id, watchers, kills)
    return report.row()


class _Watcher(threading.Thread):
    """A client that follows the stream by its standard, and sometimes disconnects by itself."""

    def __init__(self, url: str, seed: float) -> None:
        super().__init__()
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.connections = 0
        self.is_done = False
        self.stop = threading.Event()
        self._url = url
        self._moments = random.Random(seed)

    def run(self) -> None:
        while not (self.is_done or self.stop.wait(_RECONNECT_SECONDS * self._moments.random())):
            try:
                self._connect()
            except httpx.TransportError:
                continue

    def _connect(self) -> None:
        headers = {"Last-Event-ID": str(self.events[-1][0])} if self.events else {}
        hang_up_at = time.monotonic() + self._moments.expovariate(1 / 5.0)
        with httpx.stream("GET", self._url, headers=headers, timeout=20, trust_env=False) as answer:
            if answer.is_error:
                return
            self.connections += 1
            for message in messages(answer.iter_lines()):
                if "id" in message:
                    self.events.append((int(message["id"]), json.loads(message["data"])))
                self.is_done |= message.get("event") == "end"
                if self.stop.is_set() or time.monotonic() > hang_up_at:
                    return


@contextmanager
def _watching(watchers: list[_Watcher]) -> Iterator[None]:
    for watcher in watchers:
        watcher.start()
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.stop.set()
        for watcher in watchers:
            watcher.join()


def _compare(
    report: Report, stack: FaultStack, job_id: str, watchers: list[_Watcher], kills: int
) -> None:
    history = [(event["seq"], event) for event in stack.pages(f"/v1/jobs/{job_id}/events")]
    if [seq for seq, _ in history] != list(range(1, len(history) + 1)):
        report.faults.append("the history itself has gaps")
    for number, watcher in enumerate(watchers):
        if not watcher.is_done:
            report.faults.append(f"watcher {number} did not receive the end")
        if watcher.events != history:
            seen = [seq for seq, _ in watcher.events]
            report.faults.append(f"watcher {number} has {len(seen)} of {len(history)}: {seen[-5:]}")
    made = sum(each.connections for each in watchers)
    report.done = f"{kills} SIGKILLs of the API; {len(watchers)} watchers, {made} connections"
    report.outcome = f"each of the {len(watchers)} has the {len(history)} events once, in order"
