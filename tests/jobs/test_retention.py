"""What goes to make room, in which order, and what never does."""

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from service.contract import prepared_data
from service.errors import UploadInUseError
from service.jobs import removal
from service.jobs.commands import pause, retry
from service.jobs.dispatch import Dispatcher
from service.jobs.retention import Item, Limits, Retention, prune
from service.settings import Settings
from service.store import files, history, jobs, retention
from service.store.database import Database, db_now
from service.store.models import AttemptRow, CheckpointRow, FileRow, RemovalRow
from tests.jobs.schema import schema_statements
from tests.support.factories import claim_job, make_job, make_spec, submit
from tests.support.job_rows import get, history_of, put

HOUR, DAY = 3600.0, 86400.0


def item(key: str, hours: float, size: int) -> Item:
    return Item(key, hours * HOUR, size)


class TestPrune:
    @pytest.mark.parametrize(
        ("seconds", "size", "gone"),
        [
            (None, None, []),
            (48 * HOUR, None, ["old", "older"]),
            (None, 9, ["old", "older", "young"]),
            (None, 60, ["old"]),
            (None, 99, ["old"]),
            (None, 100, []),
            (48 * HOUR, 60, ["old", "older"]),
        ],
    )
    def test_the_longest_idle_first(
        self, seconds: float | None, size: int | None, gone: list[str]
    ) -> None:
        items = [item("young", 2, 10), item("older", 50, 40), item("old", 90, 50)]
        assert prune(items, Limits(seconds, size), lambda _: True) == gone

    def test_in_the_place_of_what_is_needed_goes_the_next(self) -> None:
        items = [item("c", 3, 10), item("b", 4, 10), item("a", 5, 10)]
        assert prune(items, Limits(None, 20), lambda i: i.key != "a") == ["b"]

    def test_what_was_used_within_the_hour_counts_but_stays(self) -> None:
        items = [item("new", 0.99, 100), item("a", 2, 5)]
        assert prune(items, Limits(1, 10), lambda _: True) == ["a"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def keeper(database: Database, home: Path, **limits: Any) -> Retention:
    return Retention(database, Settings(home=home, **limits))


def ended_job(database: Database, home: Path, *, days: float, size: int = 10, **values: Any) -> str:
    """A job that ran once and ended so long ago; its attempt's files have so many bytes."""
    job_id = make_job(database)
    claim_job(database, job_id)
    put(
        database,
        job_id,
        **{
            "state": "failed",
            "ended_at": db_now(-days * DAY),
            "tracking_final": True,
            "lease_until": None,
            "worker_id": None,
            **values,
        },
    )
    attempt = home / "jobs" / job_id / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "weights").write_bytes(b"w" * size)
    (home / "jobs" / job_id / "job.log").write_text("why")
    return job_id


def attempt_of(home: Path, job_id: str) -> Path:
    return home / "jobs" / job_id / "attempts" / "1"


class TestWorkspaces:
    def test_nothing_goes_unless_a_limit_is_set(self, database: Database, home: Path) -> None:
        job_id = ended_job(database, home, days=4000)
        keeper(database, home).step()
        assert attempt_of(home, job_id).is_dir()

    def test_by_age(self, database: Database, home: Path) -> None:
        old, young = (ended_job(database, home, days=days) for days in (8, 6))
        with database.write() as session:
            for step, pruned in ((10, True), (20, False)):
                session.add(
                    CheckpointRow(
                        job_id=old,
                        step=step,
                        epoch=1,
                        path=f"attempts/1/{step}",
                        bytes=1,
                        manifest_sha256="",
                        best=False,
                        created_at=db_now(),
                        pruned_at=db_now() if pruned else None,
                    )
                )
        keeper(database, home, retention_workspace_days=7).step()
        assert not attempt_of(home, old).exists()
        assert (home / "jobs" / old / "job.log").read_text() == "why"
        assert attempt_of(home, young).is_dir()
        row = get(database, old)
        assert row.workspace_pruned_at is not None
        last = history_of(database, old)[-1]
        assert (last.type, last.data) == ("workspace_pruned", {"checkpoints": [20]})
        with database.read() as session:
            assert history.registered_checkpoints(session, old) == []
            assert session.scalars(select(RemovalRow)).all() == []
        assert get(database, young).workspace_pruned_at is None

    def test_by_size_the_longest_ended_first(self, database: Database, home: Path) -> None:
        middle, oldest, newest = (
            ended_job(database, home, days=days, size=100) for days in (2, 3, 1)
        )
        room = keeper(database, home, retention_workspace_bytes=200)
        room.step()
        there = [attempt_of(home, job_id).exists() for job_id in (oldest, middle, newest)]
        assert there == [False, True, True]
        room.step()
        assert attempt_of(home, middle).exists()

    @pytest.mark.parametrize(
        "values",
        [
            {"state": "running", "ended_at": None},
            {"state": "paused", "ended_at": None},
            {"state": "queued", "ended_at": None},
            {"tracking_final": False},
        ],
    )
    def test_a_job_that_lives_or_that_mlflow_still_wants(
        self, database: Database, home: Path, values: dict[str, Any]
    ) -> None:
        job_id = ended_job(database, home, days=9, **values)
        limits = {"retention_workspace_days": 0.1, "retention_workspace_bytes": 0}
        keeper(database, home, **limits).step()
        assert attempt_of(home, job_id).is_dir()

    def test_a_job_that_was_retried_since_it_was_looked_at(
        self, database: Database, home: Path, unreachable: Dispatcher
    ) -> None:
        job_id = ended_job(database, home, days=9)
        with database.read() as session:
            [seen] = retention.ended_jobs(session)
        retry(database, unreachable, Settings(home=home), job_id)
        with database.write() as session:
            assert retention.prune_workspace(session, seen) == []
        claim_job(database, job_id)
        put(database, job_id, state="failed", ended_at=db_now())
        with database.write() as session:
            assert retention.prune_workspace(session, seen) == []
        assert get(database, job_id).workspace_pruned_at is None

    def test_a_retry_waits_for_the_row_and_then_knows(
        self, database: Database, home: Path, unreachable: Dispatcher
    ) -> None:
        """The folder is still there when the retry looks; it goes all the same, so it is gone."""
        job_id = ended_job(database, home, days=9, stage="publish")
        result = {"prepared_dir": "/p", "model_dir": "/m", "tokenizer_dir": "/t"}
        unknown: dict[str, Any] = {"model_revision": None, "dataset_revision": None, "splits": {}}
        put(
            database,
            job_id,
            results={
                "prepare": {**result, **unknown, "data_fingerprint": "f"},
                "train": {"output_dir": "attempts/1"},
            },
        )
        with database.read() as session:
            [seen] = retention.ended_jobs(session)
        retrying = threading.Thread(
            target=retry, args=(database, unreachable, Settings(home=home), job_id)
        )
        with database.write() as session:
            folders = retention.prune_workspace(session, seen)
            retrying.start()
            retrying.join(0.3)
            assert retrying.is_alive()
        retrying.join(10)
        row = get(database, job_id)
        assert (row.state, row.stage, row.workspace_pruned_at) == ("queued", "train", None)
        # Only now does the folder go: the new attempt has another.
        claimed = claim_job(database, job_id)
        new = home / "jobs" / job_id / "attempts" / str(claimed.epoch)
        new.mkdir(parents=True)
        removal.remove_paths(database, home, folders)
        assert (attempt_of(home, job_id).exists(), new.is_dir()) == (False, True)


class TestLetGo:
    def test_what_a_crash_left_is_removed_by_the_next_sweep(
        self, database: Database, home: Path
    ) -> None:
        folder = home / "jobs" / "job-1"
        folder.mkdir(parents=True)
        (folder / "x").write_text("x")
        with database.write() as session:
            retention.schedule_removal(session, ["jobs/job-1", "jobs/never-was"])
        keeper(database, home).step()
        assert not folder.exists()
        with database.read() as session:
            assert retention.scheduled_removals(session, 10) == []

    def test_what_resists_stays_on_the_list_and_holds_up_nothing(
        self, database: Database, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b"):
            (home / name).mkdir(parents=True)
        rmtree = shutil.rmtree

        def refuse(path: Path, **options: Any) -> None:
            if path.name == "a":
                raise PermissionError("not yours")
            rmtree(path, **options)

        monkeypatch.setattr(shutil, "rmtree", refuse)
        with database.write() as session:
            retention.schedule_removal(session, ["a", "b"])
        removal.remove_paths(database, home, ["a", "b"])
        assert [(home / name).exists() for name in ("a", "b")] == [True, False]
        with database.read() as session:
            assert retention.scheduled_removals(session, 10) == ["a"]


class TestUploads:
    def add(self, database: Database, home: Path, *, days: float, size: int = 10) -> str:
        file_id = files.new_id()
        with database.write() as session:
            files.add(
                session, file_id=file_id, filename="a", purpose="fine-tune", size=size, sha256="0"
            )
            session.execute(
                update(FileRow).where(FileRow.id == file_id).values(created_at=db_now(-days * DAY))
            )
        (home / "files").mkdir(parents=True, exist_ok=True)
        (home / "files" / file_id).write_bytes(b"x" * size)
        return file_id

    def names(self, *ids: str) -> dict[str, Any]:
        return {"dataset": {"source": "upload", "train": list(ids)}}

    def left(self, database: Database, home: Path) -> set[str]:
        on_disk = {path.name for path in (home / "files").iterdir()}
        with database.read() as session:
            assert set(session.scalars(select(FileRow.id))) == on_disk
        return on_disk

    def test_by_age_of_the_last_use(
        self, database: Database, home: Path, unreachable: Dispatcher
    ) -> None:
        unused, used, young = (self.add(database, home, days=days) for days in (9, 9, 7))
        job_id = submit(database, unreachable, make_spec(**self.names(used))).job_id
        put(database, job_id, state="failed", ended_at=db_now())
        keeper(database, home, retention_upload_days=8).step()
        assert self.left(database, home) == {used, young}
        assert unused not in self.left(database, home)

    def test_a_file_whose_row_never_came(self, database: Database, home: Path) -> None:
        """The API was killed between its name and its row."""
        rowless, whole = files.new_id(), self.add(database, home, days=0)
        (home / "files" / rowless).write_bytes(b"x")
        with database.write() as session:
            files.announce(session, rowless)
        keeper(database, home).step()
        assert (home / "files" / rowless).is_file()
        with database.write() as session:
            session.execute(update(RemovalRow).values(created_at=db_now(-1)))
        keeper(database, home).step()
        assert self.left(database, home) == {whole}

    def test_a_deleted_file_that_a_crash_left(self, database: Database, home: Path) -> None:
        file_id = self.add(database, home, days=0)
        with database.write() as session:
            assert files.remove(session, file_id) == f"files/{file_id}"
        assert (home / "files" / file_id).is_file()
        keeper(database, home).step()
        assert self.left(database, home) == set()

    def test_by_size_but_never_what_a_job_needs(
        self, database: Database, home: Path, unreachable: Dispatcher
    ) -> None:
        needed, first, second = (self.add(database, home, days=days) for days in (9, 8, 7))
        job_id = submit(database, unreachable, make_spec(**self.names(needed))).job_id
        pause(database, job_id)
        with database.write() as session:
            session.execute(update(FileRow).values(last_used_at=None))
        limits = {"retention_upload_bytes": 20, "retention_upload_days": 8.5}
        keeper(database, home, **limits).step()
        assert self.left(database, home) == {needed, second}
        assert first not in self.left(database, home)

    def test_a_job_that_is_made_while_the_file_is_looked_at(
        self, database: Database, home: Path
    ) -> None:
        """The sweep has found the file unused; the job comes first all the same."""
        file_id = self.add(database, home, days=9)
        room = keeper(database, home, retention_upload_days=8)
        sweeping = threading.Thread(target=room.step)
        with database.write() as session:
            files.use(session, [file_id])
            jobs.insert(session, jobs.new_job_id(), make_spec(**self.names(file_id)))
            sweeping.start()
            sweeping.join(0.3)
            assert sweeping.is_alive()
        sweeping.join(10)
        assert self.left(database, home) == {file_id}
        with database.write() as session, pytest.raises(UploadInUseError):
            files.remove(session, file_id)


class TestPrepared:
    @pytest.fixture
    def root(self, home: Path) -> Path:
        root = home / "cache" / prepared_data.FOLDER
        root.mkdir(parents=True)
        return root

    def entry(self, root: Path, key: str, *, days: float, size: int = 10) -> Path:
        with prepared_data.locked(root, key):
            (root / key / "train").mkdir(parents=True)
            (root / key / "train" / "features.arrow").write_bytes(b"x" * size)
        moment = time.time() - days * DAY
        os.utime(root / f"{key}.lock", (moment, moment))
        return root / key

    def left(self, root: Path) -> set[str]:
        return {path.name for path in root.iterdir() if path.is_dir()}

    def job_with(self, database: Database, root: Path, key: str, **values: Any) -> str:
        job_id = make_job(database)
        results = {"prepare": {"prepared_dir": str(root / key)}}
        put(database, job_id, **{"stage": "train", "results": results, **values})
        return job_id

    def test_by_age_of_the_last_use(self, database: Database, home: Path, root: Path) -> None:
        for key, days in (("old", 31), ("young", 29)):
            self.entry(root, key, days=days)
        compiled = home / "cache" / prepared_data.COMPILED
        for key, days in (("old", 31), ("young", 29)):
            self.entry(compiled, key, days=days)
        keeper(database, home).step()  # 30 days unless another limit is set
        assert self.left(root) == {"young"}
        assert self.left(compiled) == {"young"}

    def test_using_an_entry_makes_it_young(
        self, database: Database, home: Path, root: Path
    ) -> None:
        self.entry(root, "old", days=31)
        with prepared_data.locked(root, "old"):
            pass
        keeper(database, home).step()
        assert self.left(root) == {"old"}

    def test_by_size_but_never_what_a_living_job_needs(
        self, database: Database, home: Path, root: Path
    ) -> None:
        for key, days in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
            self.entry(root, key, days=days)
        self.job_with(database, root, "a", state="paused")
        self.job_with(database, root, "b", state="queued", stage="publish")
        self.job_with(database, root, "c", state="failed")
        keeper(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == {"a", "b"}

    def test_its_age_is_told_by_the_clock_that_noted_the_use(
        self, database: Database, home: Path, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not by this host's, which may go wrong by weeks."""
        self.entry(root, "young", days=29)
        self.entry(root, "old", days=31)
        present = time.time()
        monkeypatch.setattr(time, "time", lambda: present + 40 * DAY)
        keeper(database, home).step()
        assert self.left(root) == {"young"}

    def test_what_a_running_prepare_may_have_found(
        self, database: Database, home: Path, root: Path
    ) -> None:
        """Its result is in the job's row only when it ends, which may be days later."""
        self.entry(root, "found", days=1)
        self.entry(root, "before", days=3)
        job_id = make_job(database)
        claim_job(database, job_id)
        with database.write() as session:
            session.execute(update(AttemptRow).values(started_at=db_now(-2 * DAY)))
        keeper(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == {"found"}
        put(database, job_id, state="failed", ended_at=db_now())
        keeper(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == set()

    def test_an_entry_in_use_is_left_for_the_next_time(
        self, database: Database, home: Path, root: Path
    ) -> None:
        self.entry(root, "busy", days=31)
        with (root / "busy.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keeper(database, home).step()
            assert self.left(root) == {"busy"}
        keeper(database, home).step()
        assert self.left(root) == set()

    def test_in_the_place_of_one_in_use_goes_the_next(
        self, database: Database, home: Path, root: Path
    ) -> None:
        """There is room for two of the four."""
        for key, days in (("busy", 5), ("needed", 4), ("old", 3), ("young", 2)):
            self.entry(root, key, days=days)
        self.job_with(database, root, "needed", state="queued")
        with (root / "busy.lock").open() as lock, capture_logs() as logs:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keeper(database, home, retention_prepared_bytes=20).step()
        assert self.left(root) == {"busy", "needed"}
        assert [(e["what"], e["count"], e["ids"]) for e in logs] == [
            ("prepared data", 2, ["old", "young"])
        ]

    def test_what_was_used_shortly_before_a_running_prepare_stays(
        self, database: Database, home: Path, root: Path
    ) -> None:
        """An hour's grace: half an hour before it began is too late to go, two hours are not."""
        self.entry(root, "late", days=2 + 0.5 / 24)
        self.entry(root, "early", days=2 + 2 / 24)
        claim_job(database, make_job(database))
        with database.write() as session:
            session.execute(update(AttemptRow).values(started_at=db_now(-2 * DAY)))
        with capture_logs() as logs:
            keeper(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == {"late"}
        assert [entry["ids"] for entry in logs] == [["early"]]

    def test_nothing_is_reported_where_nothing_goes(
        self, database: Database, home: Path, root: Path
    ) -> None:
        self.entry(root, "young", days=1)
        with capture_logs() as logs:
            keeper(database, home, retention_workspace_days=1, retention_upload_days=1).step()
        assert logs == []

    def test_what_was_left_half_removed_or_half_built(
        self, database: Database, home: Path, root: Path
    ) -> None:
        for name in ("a.pruned", "b.tmp", "c.tmp"):
            (root / name / "train").mkdir(parents=True)
        (root / "note").touch()  # no entry
        for name in ("c.tmp", "note"):
            os.utime(root / name, (0, 0))
        with (root / "c.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it is being built
            keeper(database, home).step()
        assert self.left(root) == {"c.tmp"}
        assert not (root / "note.lock").exists()  # nor was it looked at as one

    def test_a_retry_and_a_removal_take_turns(
        self, database: Database, home: Path, root: Path, unreachable: Dispatcher
    ) -> None:
        """Whichever is first: the retried job is never at a stage whose data is gone."""
        settings = Settings(home=home)
        result = {"model_dir": "/m", "tokenizer_dir": "/t", "data_fingerprint": "k"}
        unknown: dict[str, Any] = {"model_revision": None, "dataset_revision": None, "splits": {}}
        for number in range(12):
            folder = self.entry(root, f"k{number}", days=31)
            results = {"prepare": {**result, **unknown, "prepared_dir": str(folder)}}
            job_id = self.job_with(database, root, "", state="failed", results=results)
            barrier = threading.Barrier(2)

            def sweep(barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                keeper(database, home).step()

            sweeping = threading.Thread(target=sweep)
            sweeping.start()
            barrier.wait()
            retry(database, unreachable, settings, job_id)
            sweeping.join(20)
            assert get(database, job_id).stage == ("train" if folder.is_dir() else "prepare")


class Sweeps(threading.Event):
    """Between the first sweep and the second one `happens`; then it stops."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._happens = happens

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == 1:
            self._happens()
        else:
            self.set()
        return self.is_set()


class TestRun:
    def test_goes_on_after_an_outage(
        self, home: Path, tmp_path: Path, sqlite_template: Path
    ) -> None:
        database = Database(f"sqlite:///{tmp_path / 'late.db'}")  # empty: every statement fails
        folder = home / "jobs" / "job-1"
        folder.mkdir(parents=True)

        def recover() -> None:
            assert folder.exists()
            with database.engine.begin() as connection:
                for statement in schema_statements(sqlite_template):
                    connection.exec_driver_sql(statement)
            with database.write() as session:
                retention.schedule_removal(session, ["jobs/job-1"])

        sweeps = Sweeps(recover)
        with capture_logs() as logs:
            keeper(database, home, retention_sweep_seconds=30).run(sweeps)
        assert not folder.exists()
        assert sweeps.waits == [30, 30]
        assert [entry["log_level"] for entry in logs] == ["warning"]
        assert "no such table" in logs[0]["error"]
        database.dispose()
