"""What the worker's machine lacks now never ends a job: it waits, and others continue."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.faults.small_disk import NoMountError, free_again, leave_free, small_disk
from service.contract.failures import RULES, Failure, FailureCode
from service.settings import Settings
from service.store.database import Database, clock, db_now
from service.store.jobs import counts, user_actions, wait_reasons
from service.store.jobs import state as jobs
from service.store.scope import EVERYTHING
from service.store.tables.jobs import AttemptRow, JobRow
from tests.support import forked_stubs
from tests.support.factories import make_job
from tests.support.store.job_rows import get, history_of, put
from worker import failures
from worker.devices import memory
from worker.run import JobRunner
from worker.supervision import host_lack
from worker.supervision.limits import breaches
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker

MIB = 2**20
WANTS_10_MIB = {"stub.prepare": "model:2621440"}


@pytest.fixture
def disk(tmp_path: Path, processes: None) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "small", mebibytes=64) as folder:
            yield folder
    except NoMountError as error:
        pytest.skip(str(error))


@pytest.fixture
def runner(database: Database, settings: Settings, processes: None) -> Callable[[Path], JobRunner]:
    def on(home: Path) -> JobRunner:
        here = settings.model_copy(update={"home": home})
        tracker = NullTracker()
        supervisor = Supervisor(
            database, here, tracker, command=forked_stubs.command, start=forked_stubs.start
        )
        return JobRunner(here, database, tracker, supervisor, lambda _: True, gpus=())

    return on


def wake(runner: JobRunner, job_id: str) -> JobRow:
    """Once it is due."""
    put(runner.database, job_id, not_before=db_now(-1))
    runner.wake(job_id, "worker-1", ["cpu", "gpu"])
    return get(runner.database, job_id)


def attempts(database: Database, job_id: str) -> list[tuple[str, str]]:
    """Outcome and code of each."""
    with database.read() as session:
        rows = session.query(AttemptRow).filter_by(job_id=job_id).order_by(AttemptRow.epoch)
        return [(row.outcome or "", (row.failure or {}).get("code", "")) for row in rows]


class TestDisk:
    def test_a_job_waits_for_space_and_others_run(
        self, database: Database, disk: Path, runner: Callable[[Path], JobRunner]
    ) -> None:
        here = runner(disk)
        leave_free(disk, 8 * MIB)
        large, small = make_job(database, metadata=WANTS_10_MIB), make_job(database)
        row = wake(here, large)
        assert (row.state, row.stage, row.failure) == ("queued", "prepare", None)
        assert (row.retry_count, row.crash_count) == (0, 0)
        assert attempts(database, large) == [("released", "disk_full")]
        event = history_of(database, large)[-1]
        assert (event.type, event.data["failure"]["code"]) == ("released", "disk_full")
        assert (
            "needs 10 MiB on the disk, which has free now 8 MiB"
            in (event.data["failure"]["message"])
        )
        assert "continues by itself" in event.data["failure"]["action"]
        with database.read() as session:
            assert counts.waiting_for_host(session, EVERYTHING) == {"disk_full": 1}
        # A second look starts nothing and reports nothing more.
        events = len(history_of(database, large))
        for _ in range(3):
            row = wake(here, large)
        assert (row.epoch, len(history_of(database, large))) == (1, events)
        with database.read() as session:
            until = (row.not_before - clock(session)).total_seconds()
        assert 0 < until <= wait_reasons.MAX_LACK_SECONDS
        assert wake(here, small).stage == "train"
        free_again(disk)
        assert wake(here, large).stage == "train"
        assert attempts(database, large) == [("released", "disk_full"), ("finished", "")]

    def test_many_waits_use_up_no_retries(
        self, database: Database, disk: Path, runner: Callable[[Path], JobRunner]
    ) -> None:
        """Each time there is space when the worker looks, and none when the stage does."""
        here = runner(disk)
        metadata = {"stub.prepare": "fail:disk_full", "stub.attempts": "2"}
        job_id = make_job(database, metadata=metadata, max_retries=0)
        for _ in range(2):
            assert wake(here, job_id).state == "queued"
        assert wake(here, job_id).stage == "train"

    def test_it_can_be_cancelled(
        self, database: Database, disk: Path, runner: Callable[[Path], JobRunner]
    ) -> None:
        leave_free(disk, 8 * MIB)
        job_id = make_job(database, metadata=WANTS_10_MIB)
        wake(runner(disk), job_id)
        with database.write() as session:
            row = jobs.lock(session, EVERYTHING, job_id)
            assert row is not None
            user_actions.cancel(session, row)
        assert get(database, job_id).state == "cancelled"

    def test_more_than_the_whole_disk_fails(
        self, database: Database, disk: Path, runner: Callable[[Path], JobRunner]
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": f"model:{25 * MIB}"})
        row = wake(runner(disk), job_id)
        assert row.state == "failed"
        assert (row.failure or {})["code"] == "model_too_large"
        assert "100 MiB on the disk, which has 64 MiB" in (row.failure or {})["message"]

    def test_the_worker_itself_finds_no_space(
        self, database: Database, disk: Path, runner: Callable[[Path], JobRunner]
    ) -> None:
        """For the folder of the attempt."""
        here = runner(disk)
        leave_free(disk, 0)
        job_id = make_job(database)
        assert wake(here, job_id).state == "queued"
        assert attempts(database, job_id) == [("released", "disk_full")]
        free_again(disk)
        assert wake(here, job_id).stage == "train"

    def test_a_disk_without_inodes(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        state = list(os.statvfs(disk))
        state[7] = 10  # f_favail
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(state))
        full = Failure.from_code(FailureCode.DISK_FULL, "No space left", bytes_needed=MIB)
        assert host_lack.is_lasting(full, disk)
        found = host_lack.measured(full, Settings(home=disk))
        assert found.message.endswith("but the disk can hold no more files (inodes)")


class TestOpenFiles:
    def test_of_the_worker(
        self, database: Database, tmp_path: Path, runner: Callable[[Path], JobRunner]
    ) -> None:
        here = runner(tmp_path / "home")
        job_id = make_job(database)
        put(database, job_id, not_before=db_now(-1))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        supervise, held = Supervisor._run, list[int]()

        def without_files(*given: Any) -> Any:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                return supervise(*given)
            finally:
                for each in held:
                    os.close(each)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Supervisor, "_run", without_files)
            here.wake(job_id, "worker-1", ["cpu", "gpu"])
        row = get(database, job_id)
        assert (row.state, row.crash_count) == ("queued", 0)
        assert attempts(database, job_id) == [("released", "insufficient_resources")]

    def test_of_the_system_in_a_stage(self) -> None:
        error = OSError(errno.ENFILE, "Too many open files in system")
        found = host_lack.of_worker(error)
        assert found is not None
        assert (found.code, found.details["resource"]) == (
            FailureCode.INSUFFICIENT_RESOURCES,
            "open_files",
        )


class TestMemory:
    def test_is_looked_at_before_the_next_attempt(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        lack = Failure.from_code(
            FailureCode.INSUFFICIENT_RESOURCES, "short", resource="memory", bytes_needed=100
        )
        for free, lasts in ((99, True), (100, False)):
            monkeypatch.setattr(memory, "free_bytes", lambda free=free: free)
            assert host_lack.is_lasting(lack, tmp_path) is lasts

    @pytest.mark.parametrize(
        ("used", "code"), [(4, "insufficient_resources"), (18, "out_of_memory")]
    )
    def test_a_stage_that_others_leave_too_little(self, used: int, code: str) -> None:
        """Unless it would be too large without them, too."""
        gib = 2**30
        found = breaches.machine_is_short(used * gib, {"python": used * gib}, 20 * gib, gib)
        assert (found.code, found.is_lack) == (code, used == 4)
        if found.is_lack:
            assert found.details["bytes_needed"] == 5 * gib


class TestCodes:
    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"),
            RuntimeError("Too many open files. Communication with the workers is no longer"),
            OSError(errno.EMFILE, "Too many open files"),
        ],
    )
    def test_what_a_stage_meets(self, error: Exception) -> None:
        assert failures.from_exception(error).code is FailureCode.INSUFFICIENT_RESOURCES

    def test_what_is_a_lack(self) -> None:
        assert {code for code, rule in RULES.items() if rule.is_lack} == {
            FailureCode.DISK_FULL,
            FailureCode.INSUFFICIENT_RESOURCES,
        }

    @pytest.mark.parametrize("total", [99, 100, None])
    def test_what_the_host_can_never_have_is_none(self, total: int | None) -> None:
        details: dict[str, Any] = {} if total is None else {"bytes_total": total}
        full = Failure.from_code(FailureCode.DISK_FULL, "full", bytes_needed=100, **details)
        assert full.is_lack is (total != 99)
