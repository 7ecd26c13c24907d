"""SIGKILLs of the webhook sender while jobs are made and cancelled: no event may be lost."""

import multiprocessing
import random
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import func, select

from chaos.rows import Report, Row, Scale, timed
from service.contract.states import JobState
from service.contract.webhooks import DeliveryState
from service.settings import Settings
from service.store import schema
from service.store.database import Database
from service.store.jobs import state
from service.store.tables.webhooks import DeliveryRow
from service.store.webhooks import deliveries
from service.webhooks.sender import WebhookSender
from tests.support.factories import make_job
from tests.support.servers.webhooks import Receiver, endpoint
from tests.support.threads import again_and_again

_LEASE_SECONDS: Final = 2.0
_LONGEST_LIFE: Final = 0.3
_PATIENCE_SECONDS: Final = 120.0


def run(seed: int, scale: Scale) -> Row:
    """Kill the sender at random moments; every event reaches both receivers at least once."""
    kills = scale.pick(short=10, full=200)
    moments = random.Random(seed)
    with (
        timed("SIGKILL of the webhook sender", "every event arrives at least once") as report,
        tempfile.TemporaryDirectory() as folder,
        Receiver() as one,
        Receiver() as two,
    ):
        settings = Settings(home=Path(folder), webhook_allow=["127.0.0.1"])
        database = Database(settings.sqlalchemy_url)
        schema.upgrade(database.engine)
        for receiver in (one, two):
            endpoint(database, settings, receiver.url, events=("job.*",))
        with again_and_again(partial(_make_and_cancel, database), every=0.01):
            for _ in range(kills):
                _live(settings, moments.uniform(0.0, _LONGEST_LIFE))
        _drain(database, settings)
        _compare(report, database, [one, two], kills)
        database.dispose()
    return report.row()


def _make_and_cancel(database: Database) -> None:
    job_id = make_job(database)
    with database.write() as session:
        state.move(session, job_id, JobState.QUEUED, JobState.CANCELLED, "cancelled")


def _sender(database: Database, settings: Settings) -> WebhookSender:
    return WebhookSender(database, settings, poll_seconds=0.02)


def _send(settings: Settings) -> None:
    """What the process that is killed does."""
    deliveries.LEASE_SECONDS = _LEASE_SECONDS  # type: ignore[misc]
    _sender(Database(settings.sqlalchemy_url), settings).run(threading.Event())


def _live(settings: Settings, seconds: float) -> None:
    """Start a sender, and kill it so long after its start."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["chaos.attacks.requests.webhooks"])
    process = context.Process(target=_send, args=(settings,))
    process.start()
    # Its imports are made already; what is left is the start of a process.
    time.sleep(0.1 + seconds)
    process.kill()
    process.join()


def _drain(database: Database, settings: Settings) -> None:
    """Let a sender live until nothing is pending."""
    stop = threading.Event()
    thread = threading.Thread(target=_sender(database, settings).run, args=(stop,))
    thread.start()
    until = time.monotonic() + _PATIENCE_SECONDS
    pending = select(func.count()).where(DeliveryRow.state == DeliveryState.PENDING)
    left: int | None = 1
    while left and time.monotonic() < until:
        time.sleep(0.2)
        with suppress(TimeoutError), database.read() as session:
            left = session.scalar(pending)
    stop.set()
    thread.join()


def _compare(report: Report, database: Database, receivers: list[Receiver], kills: int) -> None:
    with database.read() as session:
        sent = set(session.scalars(select(DeliveryRow.event_id)))
        states = Counter(session.scalars(select(DeliveryRow.state)))
    doubles = 0
    for receiver in receivers:
        arrived = Counter(receiver.ids())
        missing = sent - arrived.keys()
        if missing:
            report.faults.append(f"{len(missing)} of {len(sent)} events never arrived")
        doubles += arrived.total() - len(arrived)
    if set(states) != {DeliveryState.DELIVERED}:
        report.faults.append(f"deliveries ended as {dict(states)}")
    report.done = f"{kills} SIGKILLs; {len(sent)} events for two receivers"
    report.outcome = f"none lost; {doubles} of {2 * len(sent)} arrived once more"
