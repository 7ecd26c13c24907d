"""Runs attempts of stub stages under the real supervisor."""

import threading
from collections.abc import Callable
from itertools import pairwise

import psutil

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import state, user_actions
from service.store.scope import EVERYTHING
from service.store.tables.jobs import AttemptRow
from tests.support import forked_stubs
from tests.support.factories import claim_job
from tests.support.servers import services
from worker.lifecycle.shutdown import Shutdown
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker


def supervisor(
    database: Database, settings: Settings, shutdown: Shutdown | None = None
) -> Supervisor:
    return Supervisor(
        database,
        settings,
        NullTracker(),
        command=forked_stubs.command,
        start=forked_stubs.start,
        shutdown=shutdown,
    )


def run(database: Database, settings: Settings, job_id: str) -> JobState | None:
    return supervisor(database, settings).supervise(claim_job(database, job_id))


def meanwhile(action: Callable[[], object], *, when: Callable[[], object]) -> threading.Thread:
    """Run `action` in another thread once `when` holds: stages run on the main thread."""

    def wait_and_act() -> None:
        services.wait_until(when, 20, "the stage")
        action()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def started(settings: Settings, job_id: str, epoch: int = 1) -> Callable[[], bool]:
    return (settings.workspace(job_id) / "attempts" / str(epoch) / "environment").exists


def ready(settings: Settings, job_id: str, epoch: int) -> Callable[[], bool]:
    """Whether the stub now postpones soft stops."""
    return (settings.workspace(job_id) / "attempts" / str(epoch) / "ready").exists


def asked(settings: Settings, job_id: str, epoch: int) -> Callable[[], bool]:
    """Whether the stub, which postpones it, has received a soft stop."""
    return (settings.workspace(job_id) / "attempts" / str(epoch) / "asked").exists


def ask_to_pause(database: Database, job_id: str) -> None:
    with database.write() as session:
        state.move(session, job_id, JobState.RUNNING, JobState.PAUSING, "pause_requested")


def ask_to_cancel(database: Database, job_id: str) -> None:
    with database.write() as session:
        row = state.lock(session, EVERYTHING, job_id)
        assert row is not None
        user_actions.cancel(session, row)


def children() -> list[psutil.Process]:
    """Living stages of this test process, which may have started brokers, too."""
    found = psutil.Process().children(recursive=True)
    return [child for child in found if _is_stage(child)]


def _is_stage(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()  # a zombie has none
    except psutil.NoSuchProcess:
        return False
    # The fork server names the module as one to import.
    by_module = ("-m", forked_stubs.STAGE) in pairwise(words)
    return by_module or any("support/stages/stage" in word for word in words)


def attempt(database: Database, job_id: str, epoch: int) -> AttemptRow:
    with database.read() as session:
        return session.get_one(AttemptRow, (job_id, epoch))
