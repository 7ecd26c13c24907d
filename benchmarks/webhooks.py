"""What the outbox of webhooks adds to a change of state, deliveries a second, and what receivers
that never answer cost another one of their project; on SQLite.

`python -m benchmarks webhooks`
"""

import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Final
from unittest import mock

from service.contract.states import JobState
from service.settings import Settings
from service.store import jobs, schema
from service.store.database import Database
from service.webhooks.requests import TRY_SECONDS
from service.webhooks.sender import WebhookSender
from tests.support.factories import make_job
from tests.support.projects import make_job_of, make_project
from tests.support.webhooks import Receiver, endpoint

_CHANGES: Final = 150
_EVENTS: Final = 1000
_EVENTS_TIMED: Final = 20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Receiver() as receiver:
        settings = Settings(home=Path(folder), webhook_allow=["127.0.0.1"])
        database = Database(settings.sqlalchemy_url)
        schema.upgrade(database.engine)
        without, no_endpoint = [], []
        for _ in range(_CHANGES):
            with mock.patch("service.store.webhook_outbox.add"):
                without.append(_change(database))
            no_endpoint.append(_change(database))
        endpoint(database, settings, receiver.url, events=("job.*",))
        one_endpoint = [_change(database) for _ in range(_CHANGES)]
        print(f"a change of state, without the outbox: {statistics.median(without):.2f} ms")
        print(f"in a project without webhooks: {statistics.median(no_endpoint):.2f} ms")
        print(f"in a project with one webhook: {statistics.median(one_endpoint):.2f} ms")
        for _ in range(_EVENTS):
            make_job(database)
        print(f"deliveries to one receiver: {_rate(database, settings, receiver):.0f} a second")
        for dead in (0, 19):
            delays = _delays(database, settings, dead)
            print(f"from a commit to its arrival, {dead} other receivers never answer: {delays}")
        database.dispose()


def _change(database: Database) -> float:
    """Milliseconds of one transaction that cancels a job."""
    job_id = make_job(database)
    began = time.perf_counter()
    _cancel(database, job_id)
    return (time.perf_counter() - began) * 1e3


def _cancel(database: Database, job_id: str) -> None:
    with database.write() as session:
        jobs.move(session, job_id, JobState.QUEUED, JobState.CANCELLED, "cancelled")


def _rate(database: Database, settings: Settings, receiver: Receiver) -> float:
    stop = threading.Event()
    thread = threading.Thread(target=WebhookSender(database, settings).run, args=(stop,))
    began = time.monotonic()
    thread.start()
    while len(receiver.ids()) < _EVENTS:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    stop.set()
    thread.join()
    return _EVENTS / seconds


def _delays(database: Database, settings: Settings, dead: int) -> str:
    """Of events one after the other, once the sender knows who does not answer."""
    project, stop = f"with-{dead}", threading.Event()
    arrived: list[float] = []

    def note(_: int) -> int:
        arrived.append(time.monotonic())
        return 204

    make_project(database, project)
    with Receiver(note) as live, socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        never = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        for url in (live.url, *dead * [never]):
            endpoint(database, settings, url, events=("job.cancelled",), project=project)
        thread = threading.Thread(target=WebhookSender(database, settings).run, args=(stop,))
        thread.start()
        _cancel(database, make_job_of(database, project))
        time.sleep(2 * TRY_SECONDS if dead else 1)
        delays = []
        for number in range(_EVENTS_TIMED):
            _cancel(database, make_job_of(database, project))
            committed = time.monotonic()
            while len(arrived) < number + 2 and time.monotonic() - committed < 30:
                time.sleep(0.002)
            delays.append(max(0.0, time.monotonic() - committed))
        stop.set()
        thread.join()
    parts = statistics.quantiles(delays, n=100)
    p50, p95, p99 = (1e3 * parts[place - 1] for place in (50, 95, 99))
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms"


if __name__ == "__main__":
    main()
