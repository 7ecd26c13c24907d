"""Previews of real workers on a real broker: one that is killed in the middle costs nothing."""

import signal
from pathlib import Path

import psutil
import pytest

from service.contract.routing import PREVIEW_QUEUE, Message, MessageKind
from service.jobs.retention import Retention
from service.store.database import db_now
from service.store.interactive import previews
from service.store.scheduling.fleet import Fleet
from service.store.tables.interactive import PreviewRow
from tests.support.servers.services import wait_until
from tests.support.store.databases import on_sqlite
from tests.support.store.job_rows import get
from tests.support.store.previews import bring_removals_forward, make_preview, preview, put_preview
from tests.support.warm_processes import Process
from tests.support.workers.stack import SECONDS, Stack, descendants

pytestmark = [
    pytest.mark.long,
    on_sqlite,
    pytest.mark.parametrize("broker_url", ["valkey"], indirect=True),
]


def begin(stack: Stack, **metadata: str) -> str:
    """A preview, as the API makes it."""
    preview_id = make_preview(stack.database, metadata=metadata)
    with stack.database.read() as session:
        fleet = Fleet.read(session.connection(), stack.settings.alive_seconds)
        (message,) = previews.messages(session, [preview_id], fleet)
    stack.dispatcher.enqueue(message)
    return preview_id


def ended(stack: Stack, preview_id: str) -> PreviewRow:
    def is_over() -> bool:
        stack.reconciler.step()
        return preview(stack.database, preview_id).ended_at is not None

    wait_until(is_over, SECONDS, f"the preview: {stack.log.read_text()[-3000:]}")
    return preview(stack.database, preview_id)


def stage_folder(stack: Stack, preview_id: str) -> Path:
    """Of the first attempt, once its stage runs."""
    folder = stack.settings.workspace(preview_id) / "attempts" / "1"
    wait_until((folder / "made").exists, SECONDS, "the stage")
    return folder


def kill(worker: Process) -> list[psutil.Process]:
    """With its pool, as a machine does that loses its power; what it had started."""
    family = descendants(worker)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    return family


def test_another_worker_takes_over_and_nothing_is_left_behind(stack: Stack) -> None:
    first = stack.start_worker("--name", "first")
    mine = begin(stack, **{"stub.preview": "hang", "stub.attempts": "1"})
    stage_folder(stack, mine)
    waiting = stack.submit()
    family = kill(first)
    wait_until(
        lambda: not any(p.is_running() and p.status() != "zombie" for p in family),
        SECONDS,
        "the end of all processes of the killed worker",
    )
    stack.start_worker("--name", "second")
    row = ended(stack, mine)
    assert (row.state, row.epoch) == ("succeeded", 2)
    assert str(row.worker_id).startswith("second@")
    stack.wait_for_state(waiting, "succeeded")
    assert get(stack.database, waiting).crash_count == 0
    bring_removals_forward(stack.database)
    put_preview(stack.database, mine, expires_at=db_now(-1))
    Retention(stack.database, stack.settings).step()
    assert [each.name for each in stack.settings.jobs_dir.iterdir()] == [waiting]
    with stack.database.read() as session:
        assert session.get(PreviewRow, mine) is None


class TestBesideATraining:
    """A worker for previews alone, next to one whose only slot is taken."""

    def train(self, stack: Stack) -> str:
        stack.start_worker("--name", "jobs")
        job_id = stack.submit(metadata={"stub.train": "hang", "stub.attempts": "1"})
        stack.wait_for_stage(job_id, 2)
        return job_id

    def test_it_is_made_and_no_job_is_taken(self, stack: Stack) -> None:
        training = self.train(stack)
        stack.start_worker("--queues", "preview", "--name", "previews")
        next_job = stack.submit()
        # A message that another program writes to its queue is not a job of its own.
        stack.dispatcher.enqueue(Message(MessageKind.JOB, next_job, PREVIEW_QUEUE, 0))
        made = [ended(stack, begin(stack)) for _ in range(2)]
        assert [(row.state, row.epoch) for row in made] == [("succeeded", 1)] * 2
        assert all(str(row.worker_id).startswith("previews@") for row in made)
        assert [get(stack.database, each).state for each in (training, next_job)] == [
            "running",
            "queued",
        ]
        assert get(stack.database, training).epoch == 2

    @pytest.mark.heavy  # as a preview whose worker is killed, below
    def test_a_killed_one_costs_the_training_nothing(self, stack: Stack) -> None:
        training = self.train(stack)
        first = stack.start_worker("--queues", "preview", "--name", "first")
        mine = begin(stack, **{"stub.preview": "hang", "stub.attempts": "1"})
        stage_folder(stack, mine)
        kill(first)
        stack.start_worker("--queues", "preview", "--name", "second")
        row = ended(stack, mine)
        assert (row.state, row.epoch) == ("succeeded", 2)
        assert str(row.worker_id).startswith("second@")
        trained = get(stack.database, training)
        assert (trained.state, trained.epoch, trained.crash_count) == ("running", 2, 0)
