"""Which waiting job gets GPUs, and when."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from service.contract.routing import consumed_queues, gpu_queue
from service.contract.states import Stage
from service.store.database import Database, db_now
from service.store.jobs import claims
from service.store.jobs.claims import Claim
from service.store.scheduling.fair_queue import holds_back
from tests.support.factories import make_job
from tests.support.gpus.gpus import gpus
from tests.support.servers.services import wait_until
from tests.support.store.job_rows import get, put
from worker.devices.gpu_locks import GpuLocks
from worker.devices.gpu_scheduler import Assignment, GpuScheduler
from worker.lifecycle.shutdown import Shutdown

SECONDS = 30


def make_training(database: Database, wanted: int, *, priority: int = 5) -> str:
    """A job whose training waits for so many GPUs."""
    job_id = make_job(database, resources={"gpus": wanted}, priority=priority)
    queue = gpu_queue(wanted)
    put(database, job_id, stage=Stage.TRAIN, queue=queue, min_gpus=wanted, queued_at=db_now())
    return job_id


class Worker:
    """One process of a pool: its scheduler, and the messages that it has sent."""

    def __init__(self, database: Database, folder: Path, *uuids: str) -> None:
        self.database = database
        self.enqueued: list[str] = []
        self.shutdown = Shutdown()
        self.locks = GpuLocks(folder, gpus(*uuids))
        self.queues = consumed_queues(["gpu"], len(uuids))
        self.scheduler = GpuScheduler(
            database,
            self.locks,
            try_claim=self.claim,
            enqueue=self.enqueued.append,
            shutdown=self.shutdown,
            poll_seconds=0.1,
        )

    def claim(self, job_id: str, queue: str, given: Sequence[str]) -> Claim | None:
        with self.database.write() as session:
            return claims.claim(
                session, job_id, "worker", queues=[queue], gpus=given, lease_seconds=60
            )

    def next(self, job_id: str, *more_queues: str) -> Assignment | None:
        return self.scheduler.next(job_id, [*more_queues, *self.queues])

    def place(self, job_id: str) -> Assignment:
        assignment = self.next(job_id)
        assert assignment is not None
        return assignment

    def place_later(self, job_id: str, *more_queues: str) -> "Later":
        return Later(lambda: self.next(job_id, *more_queues))


class Later:
    """A call on a thread."""

    def __init__(self, call: Callable[[], Assignment | None]) -> None:
        self._found: list[Assignment | None] = []
        self._thread = threading.Thread(target=lambda: self._found.append(call()))
        self._thread.start()

    def result(self) -> Assignment | None:
        self._thread.join(SECONDS)
        [assignment] = self._found
        return assignment

    def placed(self) -> Assignment:
        assignment = self.result()
        assert assignment is not None
        return assignment


@pytest.fixture
def worker(database: Database, tmp_path: Path) -> Worker:
    return Worker(database, tmp_path / "devices", "GPU-a", "GPU-b")


@pytest.fixture
def other(database: Database, tmp_path: Path) -> Worker:
    """Another process of the same pool."""
    return Worker(database, tmp_path / "devices", "GPU-a", "GPU-b")


class TestPlaces:
    def test_two_jobs_of_one_gpu_have_one_each(self, database: Database, worker: Worker) -> None:
        first, second = make_training(database, 1), make_training(database, 1)
        assignments = [worker.place(first), worker.place(second)]
        assert [(a.claim.job_id, a.claim.gpus) for a in assignments] == [
            (first, ("GPU-a",)),
            (second, ("GPU-b",)),
        ]
        assert [a.held.gpus for a in assignments] == [("GPU-a",), ("GPU-b",)]
        assert worker.enqueued == []

    def test_the_first_in_the_queues_starts_first_and_the_message_is_returned(
        self, database: Database, worker: Worker
    ) -> None:
        usual, urgent = make_training(database, 1), make_training(database, 2, priority=0)
        assignment = worker.place(usual)
        assert (assignment.claim.job_id, assignment.claim.gpus) == (urgent, ("GPU-a", "GPU-b"))
        assert worker.enqueued == [usual]

    def test_nothing_waits(self, database: Database, worker: Worker) -> None:
        too_large = make_training(database, 3)
        assert worker.next(too_large, "gpu.3") is None
        assert worker.enqueued == []
        with worker.locks.scheduler_lock() as line:
            assert line.try_acquire()

    def test_a_job_that_another_worker_wins_leaves_the_gpus_to_the_next(
        self, database: Database, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost, mine = make_training(database, 2), make_training(database, 2)

        def lose(job_id: str, queue: str, given: Sequence[str]) -> Claim | None:
            claim = worker.claim(job_id, queue, given)
            return None if job_id == lost else claim

        monkeypatch.setattr(worker.scheduler, "try_claim", lose)
        assert worker.place(lost).claim.job_id == mine

    def test_a_claim_that_fails_releases_the_gpus(
        self, database: Database, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ConnectionError

        monkeypatch.setattr(worker.scheduler, "try_claim", fail)
        job_id = make_training(database, 2)
        with pytest.raises(ConnectionError):
            worker.next(job_id)
        monkeypatch.undo()
        assert worker.place(job_id).claim.job_id == job_id

    def test_a_claimed_job_runs_even_if_the_other_waiting_jobs_are_unknown(
        self, database: Database, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: str) -> None:
            raise OperationalError("SELECT", None, ConnectionError("server closed the connection"))

        monkeypatch.setattr(worker.scheduler, "enqueue", fail)
        usual, urgent = make_training(database, 1), make_training(database, 1, priority=0)
        assert worker.place(usual).claim.job_id == urgent


class TestWaits:
    def test_a_large_job_is_not_overtaken_while_gpus_become_free(
        self, database: Database, worker: Worker, other: Worker
    ) -> None:
        running = [worker.place(make_training(database, 1)) for _ in range(2)]
        large, small = make_training(database, 2), make_training(database, 1)
        waits = worker.place_later(large)
        wait_until(
            lambda: worker.enqueued == [large], SECONDS, "the message, for workers elsewhere"
        )
        behind = other.place_later(small)
        wait_until(lambda: other.enqueued == [small], SECONDS, "the message of the one behind")
        running[0].held.release()
        # Free GPUs are kept for the large one, however often the others try.
        for _ in range(3):
            assert not worker.scheduler._fits(worker.scheduler._waiting(worker.queues))
        running[1].held.release()
        assignment = waits.placed()
        assert (assignment.claim.job_id, assignment.claim.gpus) == (large, ("GPU-a", "GPU-b"))
        assert get(database, small).state == "queued"
        assignment.held.release()
        assert behind.placed().claim.job_id == small

    def test_a_better_one_that_arrives_meanwhile_starts_first(
        self, database: Database, worker: Worker
    ) -> None:
        running = worker.place(make_training(database, 1))
        large = make_training(database, 2)
        waits = worker.place_later(large)
        wait_until(lambda: worker.enqueued == [large], SECONDS, "the first look")
        urgent = make_training(database, 1, priority=0)
        assert waits.placed().claim.job_id == urgent
        running.held.release()

    def test_in_between_smaller_ones_may_pass(self, database: Database, worker: Worker) -> None:
        worker.place(make_training(database, 1))
        large = make_training(database, 2)
        put(database, large, queued_at=get(database, large).queued_at - timedelta(seconds=601))
        small = make_training(database, 1)
        assignment = worker.place(small)
        assert (assignment.claim.job_id, assignment.claim.gpus) == (small, ("GPU-b",))

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_worker_that_stops_waits_no_longer(
        self, database: Database, worker: Worker, other: Worker, is_first: bool
    ) -> None:
        worker.place(make_training(database, 2))
        job_id = make_training(database, 1)
        with other.locks.scheduler_lock() as line:
            assert is_first or line.try_acquire()
            waits = worker.place_later(job_id)
            wait_until(lambda: worker.enqueued == [job_id], SECONDS, "the message")
            worker.shutdown.request()
            assert waits.result() is None
        assert get(database, job_id).state == "queued"

    def test_one_process_waits_where_cpu_jobs_need_the_others(
        self, database: Database, worker: Worker, other: Worker
    ) -> None:
        running = worker.place(make_training(database, 2))
        first, second = make_training(database, 1), make_training(database, 1)
        waits = worker.place_later(first, "cpu")
        wait_until(lambda: worker.enqueued == [first], SECONDS, "the first look")
        assert other.next(second, "cpu") is None
        assert other.enqueued == []
        running.held.release()
        assert waits.placed().claim.job_id == first
        # The message that the other process has dropped.
        assert worker.enqueued == [first, second]


@pytest.mark.parametrize(
    ("minutes", "holds"),
    [(0, True), (9, True), (11, False), (29, False), (31, True), (69, True), (71, False)],
)
def test_a_large_job_blocks_others_for_times_that_double(minutes: float, holds: bool) -> None:
    assert holds_back(minutes * 60) is holds


def test_clocks_that_differ_are_not_an_error() -> None:
    assert holds_back(-5)
