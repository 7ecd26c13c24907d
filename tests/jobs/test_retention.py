"""What retention deletes, in which order: workspaces, scheduled removals, and the sweeps."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from service.jobs import removal
from service.jobs.commands import retry
from service.jobs.dispatch import Dispatcher
from service.jobs.retention import Item, Limits, prune
from service.settings import Settings
from service.store import removals
from service.store.database import Database, db_now
from service.store.files import retention
from service.store.jobs import attempt_reports
from service.store.scope import EVERYTHING
from service.store.tables.files import RemovalRow
from service.store.tables.jobs import CheckpointRow
from tests.jobs.retention import DAY, HOUR, retention_of
from tests.support.factories import claim_job, make_job
from tests.support.store.job_rows import get, history_of, put


def item(key: str, hours: float, size: int) -> Item:
    return Item(key, hours * HOUR, size)


class TestPrune:
    @pytest.mark.parametrize(
        ("seconds", "size", "removed"),
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
        self, seconds: float | None, size: int | None, removed: list[str]
    ) -> None:
        items = [item("young", 2, 10), item("older", 50, 40), item("old", 90, 50)]
        assert prune(items, Limits(seconds, size), lambda _: True) == removed

    def test_the_next_is_removed_instead_of_a_needed_one(self) -> None:
        items = [item("c", 3, 10), item("b", 4, 10), item("a", 5, 10)]
        assert prune(items, Limits(None, 20), lambda i: i.key != "a") == ["b"]

    def test_items_used_within_the_hour_count_but_are_kept(self) -> None:
        items = [item("new", 0.99, 100), item("a", 2, 5)]
        assert prune(items, Limits(1, 10), lambda _: True) == ["a"]


def ended_job(database: Database, home: Path, *, days: float, size: int = 10, **values: Any) -> str:
    """A job that ran once and ended `days` ago; its attempt's files have `size` bytes."""
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
    def test_nothing_is_removed_without_a_limit(self, database: Database, home: Path) -> None:
        job_id = ended_job(database, home, days=4000)
        retention_of(database, home).step()
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
        with capture_logs() as logs:
            retention_of(database, home, retention_workspace_days=7).step()
        assert [(entry["what"], entry["ids"]) for entry in logs] == [("workspace", [old])]
        assert not attempt_of(home, old).exists()
        assert (home / "jobs" / old / "job.log").read_text() == "why"
        assert attempt_of(home, young).is_dir()
        row = get(database, old)
        assert row.workspace_pruned_at is not None
        last = history_of(database, old)[-1]
        assert (last.type, last.data) == ("workspace_pruned", {"checkpoints": [20]})
        with database.read() as session:
            assert attempt_reports.registered_checkpoints(session, old) == []
            assert session.scalars(select(RemovalRow)).all() == []
        assert get(database, young).workspace_pruned_at is None

    def test_by_size_the_longest_ended_first(self, database: Database, home: Path) -> None:
        middle, oldest, newest = (
            ended_job(database, home, days=days, size=100) for days in (2, 3, 1)
        )
        sweeps = retention_of(database, home, retention_workspace_bytes=200)
        sweeps.step()
        there = [attempt_of(home, job_id).exists() for job_id in (oldest, middle, newest)]
        assert there == [False, True, True]
        # Measured once: nothing writes there any more.
        (attempt_of(home, newest) / "weights").write_bytes(b"w" * 500)
        sweeps.step()
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
    def test_a_live_job_or_one_not_yet_in_mlflow(
        self, database: Database, home: Path, values: dict[str, Any]
    ) -> None:
        job_id = ended_job(database, home, days=9, **values)
        limits = {"retention_workspace_days": 0.1, "retention_workspace_bytes": 0}
        retention_of(database, home, **limits).step()
        assert attempt_of(home, job_id).is_dir()

    def test_a_job_that_was_retried_since_it_was_listed(
        self, database: Database, home: Path, unreachable: Dispatcher
    ) -> None:
        job_id = ended_job(database, home, days=9)
        with database.read() as session:
            [seen] = retention.ended_jobs(session)
        retry(database, unreachable, Settings(home=home), EVERYTHING, job_id)
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
        """The retry still finds the folder, but it will be removed, so it counts as removed."""
        job_id = ended_job(database, home, days=9, stage="publish")
        result = {"prepared_dir": "cache/p", "model_dir": "cache/m", "tokenizer_dir": "cache/m"}
        for place in result.values():
            (home / place).mkdir(parents=True, exist_ok=True)
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
            target=retry,
            args=(database, unreachable, Settings(home=home), EVERYTHING, job_id),
        )
        with database.write() as session:
            folders = retention.prune_workspace(session, seen)
            retrying.start()
            retrying.join(0.3)
            assert retrying.is_alive()
        retrying.join(10)
        row = get(database, job_id)
        assert (row.state, row.stage, row.workspace_pruned_at) == ("queued", "train", None)
        # The folder is removed only now: the new attempt has another one.
        claimed = claim_job(database, job_id)
        new = home / "jobs" / job_id / "attempts" / str(claimed.epoch)
        new.mkdir(parents=True)
        removal.remove_paths(database, home, folders)
        assert (attempt_of(home, job_id).exists(), new.is_dir()) == (False, True)


class TestScheduledRemovals:
    def test_the_next_sweep_removes_what_a_crash_left(self, database: Database, home: Path) -> None:
        folder = home / "jobs" / "job-1"
        folder.mkdir(parents=True)
        (folder / "x").write_text("x")
        with database.write() as session:
            removals.schedule(session, ["jobs/job-1", "jobs/never-was"])
        retention_of(database, home).step()
        assert not folder.exists()
        with database.read() as session:
            assert removals.due(session, 10) == []

    def test_a_failed_removal_is_kept_for_later_and_blocks_no_other(
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
            removals.schedule(session, ["a", "b"])
        removal.remove_paths(database, home, ["a", "b"])
        assert [(home / name).exists() for name in ("a", "b")] == [True, False]
        with database.read() as session:
            assert removals.due(session, 10) == ["a"]


def test_an_error_of_the_disk_does_not_end_it(
    database: Database, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no disk")

    sweeps = retention_of(database, home, retention_sweep_seconds=30)
    waits: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if len(waits) == 3:
                monkeypatch.setattr(removal, "remove_paths", fail)
            return len(waits) == 4

    with database.write() as session:
        removals.schedule(session, ["never-was"])
    with capture_logs() as logs:
        sweeps.run(Stop())
    assert waits == [0.0, 30, 30, 30]
    failed = [entry["loop"] for entry in logs if entry["event"] == "loop.step_failed"]
    assert failed == ["retention"]
