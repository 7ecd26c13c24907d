"""A real `python -m worker` on real brokers and databases; only the stages are stubs."""

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from sqlalchemy import select

from service.contract.routing import Message, MessageKind
from service.jobs.commands import cancel
from service.store.database import db_now
from service.store.scope import EVERYTHING
from service.store.tables.jobs import AttemptRow
from tests.support.processes import is_alive
from tests.support.servers import services
from tests.support.store.job_rows import get, history_of, put
from tests.support.warm_processes import Process
from tests.support.workers.forged_messages import SIGNS, send_forged
from tests.support.workers.stack import SECONDS, Stack, descendants, pool_of

pytestmark = pytest.mark.long


def _on(*pairs: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("database_url", "broker_url"), pairs, indirect=True)


EMBEDDED = ("sqlite", "valkey")
SERVERS = ("postgres", "redis")
# What is the same on both pairs is tested on one of them; what matters most, seldom on the other.
on_both = _on(SERVERS, pytest.param(*EMBEDDED, marks=pytest.mark.heavy))
on_embedded = _on(EMBEDDED)
on_servers = _on(SERVERS)
# Both reach the same handler.
on_signals = pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.heavy)]
)


def all_ended(processes: list[psutil.Process]) -> bool:
    return not any(map(is_alive, processes))


def saved(stack: Stack, job_id: str) -> list[int]:
    """The steps of the checkpoints that the job's events name."""
    events = history_of(stack.database, job_id)
    return [event.data["step"] for event in events if event.type == "checkpoint"]


@on_both
def test_jobs_end_as_their_stages_end(stack: Stack) -> None:
    process = stack.start_worker()
    good = stack.submit()
    # Its stages follow each other without the reconciler.
    services.wait_until(
        lambda: get(stack.database, good).state == "succeeded", SECONDS, "the job's success"
    )
    bad = stack.submit(metadata={"stub.train": "fail:unreadable_row"})
    crashing = stack.submit(metadata={"stub.prepare": "segfault", "stub.attempts": "1"})
    for job_id, state in [(good, "succeeded"), (bad, "failed"), (crashing, "succeeded")]:
        stack.wait_for_state(job_id, "succeeded", "failed")
        assert get(stack.database, job_id).state == state
    row = get(stack.database, bad)
    assert row.failure is not None
    assert (row.stage, row.failure["code"]) == ("train", "unreadable_row")
    # The second try of `prepare` came after its backoff.
    types = [event.type for event in history_of(stack.database, crashing)]
    assert types[:4] == ["submitted", "stage_started", "attempt_failed", "stage_started"]
    [worker] = stack.workers()
    assert worker.queues == ["cpu", "gpu"]
    log = stack.log.read_text()
    assert re.search(r"limits\.ready.*held_by.*(watching supervisor \(|control groups below)", log)
    assert get(stack.database, good).epoch == 3
    _assert_a_new_process_has_no_connection_of_its_parent(stack, process)


def _assert_a_new_process_has_no_connection_of_its_parent(stack: Stack, process: Process) -> None:
    [killed] = pool_of(process)
    killed.kill()
    services.wait_until(lambda: pool_of(process) not in ([], [killed]), SECONDS, "another one")
    [child] = pool_of(process)
    url = stack.database.engine.url
    files = [file.path for file in child.open_files() if file.path.startswith(url.database or "")]
    sockets = [c for c in child.net_connections("tcp") if c.raddr and c.raddr.port == url.port]
    assert (files, sockets) == ([], [])
    # It works.
    stack.wait_for_state(stack.submit(), "succeeded")


@on_embedded
def test_cancel_reaches_a_running_stage_and_repeated_messages_change_nothing(stack: Stack) -> None:
    process = stack.start_worker()
    job_id = stack.submit(metadata={"stub.prepare": "deaf"})
    stack.wait_for_stage(job_id, 1)
    cancel(stack.database, stack.dispatcher, EVERYTHING, job_id)
    services.wait_until(
        lambda: get(stack.database, job_id).state == "cancelled", 15, "the end of the job"
    )
    # The worker is ready for the next job, and a hundred messages make one attempt of it.
    other = stack.submit()
    for _ in range(100):
        assert stack.dispatcher.enqueue(Message(MessageKind.JOB, other, "cpu", 5))
    stack.wait_for_state(other, "succeeded")
    last = stack.submit(priority=9)
    stack.wait_for_state(last, "succeeded")
    assert get(stack.database, other).epoch == 3
    assert process.poll() is None


@on_both
def test_a_killed_workers_job_continues_on_another_worker(stack: Stack) -> None:
    process = stack.start_worker()
    job_id = stack.submit(metadata={"stub.train": "hang", "stub.attempts": "1"})
    stack.wait_for_stage(job_id, 2)
    stack.wait(job_id, lambda: len(saved(stack, job_id)) == 3, "its checkpoints")
    family = descendants(process)
    assert len(family) >= 2  # the pool's process and the stage
    process.kill()
    process.wait()
    # Nothing outlives it: a stage would still hold its GPU.
    services.wait_until(lambda: all_ended(family), 5, "the end of its processes")
    stack.start_worker()
    stack.wait_for_state(job_id, "succeeded", "failed")
    assert get(stack.database, job_id).state == "succeeded"
    with stack.database.read() as session:
        attempts = list(session.scalars(select(AttemptRow).order_by(AttemptRow.epoch)))
    # The job's loss takes an epoch of its own, so the next is 3.
    assert [(a.epoch, a.stage, a.outcome, a.resumed_from_step) for a in attempts] == [
        (1, "prepare", "finished", None),
        (2, "train", "lost", None),
        (4, "train", "finished", 3),
        (5, "publish", "finished", None),
    ]
    events = history_of(stack.database, job_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert get(stack.database, job_id).metric_seq == 3


@on_embedded
@on_signals
def test_a_stopped_worker_gives_its_job_back_and_leaves_nothing(
    stack: Stack, number: signal.Signals
) -> None:
    process = stack.start_worker()
    job_id = stack.submit(metadata={"stub.prepare": "hang", "stub.attempts": "1"})
    stack.wait_for_stage(job_id, 1)
    family = descendants(process)
    process.send_signal(number)
    assert process.wait(15) == 0
    assert all_ended(family)
    row = get(stack.database, job_id)
    assert (row.state, row.crash_count, row.lease_until) == ("queued", 0, None)
    assert stack.workers() == []
    stack.start_worker()
    stack.wait_for_state(job_id, "succeeded")


@pytest.mark.heavy  # waits for 20 s
@on_servers
def test_a_worker_whose_pool_hangs_exits(stack: Stack) -> None:
    stack.values["drain_grace_seconds"] = "0"
    process = stack.start_worker()
    job_id = stack.submit(metadata={"stub.prepare": "hang", "stub.attempts": "1"})
    stack.wait_for_stage(job_id, 1)
    family = descendants(process)
    [supervisor] = pool_of(process)
    supervisor.suspend()
    process.send_signal(signal.SIGTERM)
    assert process.wait(25) == os.EX_TEMPFAIL  # 2 s of grace and 10 s more
    services.wait_until(lambda: all_ended(family), 5, "the end of its processes")
    assert stack.workers() == []
    stack.start_worker()
    stack.wait_for_state(job_id, "succeeded")


@pytest.mark.heavy  # TestSoftStop of tests/e2e has one, too
@on_embedded
def test_a_draining_worker_lets_training_write_a_checkpoint(stack: Stack) -> None:
    process = stack.start_worker()
    job_id = stack.submit(metadata={"stub.train": "patient", "stub.attempts": "1"})
    folder = stack.wait_for_stage(job_id, 2)
    stack.wait(job_id, (folder / "ready").exists, "the stage's steps")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    row = get(stack.database, job_id)
    assert (row.state, row.crash_count, row.furthest_step) == ("queued", 0, 4)
    stack.start_worker()
    stack.wait_for_state(job_id, "succeeded")
    with stack.database.read() as session:
        attempts = list(session.scalars(select(AttemptRow).order_by(AttemptRow.epoch)))
    assert [(a.outcome, a.resumed_from_step) for a in attempts] == [
        ("finished", None),
        ("released", None),
        ("finished", 4),
        ("finished", None),
    ]


@pytest.mark.heavy
@on_servers
@on_signals
def test_a_second_signal_is_not_patient(stack: Stack, number: signal.Signals) -> None:
    process = stack.start_worker()
    job_id = stack.submit(metadata={"stub.prepare": "stubborn"})
    folder = stack.wait_for_stage(job_id, 1)
    stack.wait(job_id, (folder / "ready").exists, "the stage")
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(number)
    assert process.wait(15) == 0
    row = get(stack.database, job_id)
    assert (row.state, row.crash_count, row.lease_until) == ("queued", 0, None)


@on_servers
def test_a_broker_that_lost_everything_then_has_invalid_messages(
    stack: Stack, tmp_path: Path
) -> None:
    job_id = stack.submit()
    client = redis.Redis.from_url(stack.broker_url)
    services.wait_until(lambda: client.llen("cpu:5") == 1, 10, "the message")
    client.flushall()
    client.close()
    put(stack.database, job_id, next_publish_at=db_now(-1))  # seconds later, that is
    process = stack.start_worker()
    stack.wait_for_state(job_id, "succeeded")
    # They are refused, and the worker continues.
    trap = tmp_path / "trapped"
    send_forged(stack.broker_url, trap)
    assert stack.dispatcher.enqueue(Message(MessageKind.JOB, "job-unknown", "cpu", 0))
    job_id = stack.submit()
    stack.wait_for_state(job_id, "succeeded")
    assert process.poll() is None
    assert not trap.exists()
    log = stack.log.read_text()
    for sign in SIGNS:
        assert sign in log
