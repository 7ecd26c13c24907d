"""Retention of prepared data: by age and size, and never what a live job or `prepare` needs."""

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from service.contract.stage import prepared_data, project_cache
from service.jobs.commands import retry
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.scope import EVERYTHING
from service.store.tables.jobs import AttemptRow
from tests.jobs.retention import DAY, retention_of
from tests.support.factories import claim_job, make_job
from tests.support.store.job_rows import get, put


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

    @pytest.mark.parametrize(
        ("folder", "what"),
        [
            (prepared_data.FOLDER, "prepared data"),
            (prepared_data.COMPILED, "compiled code"),
            (prepared_data.REFERENCE, "reference values"),
        ],
    )
    def test_of_all_projects_together(
        self, database: Database, home: Path, folder: str, what: str
    ) -> None:
        cache = home / "cache"
        roots = [
            project_cache.folder_of(cache, project) / folder for project in ("default", "a", "b")
        ]
        for number, root in enumerate(roots):
            self.entry(root, f"old{number}", days=31)
            self.entry(root, f"young{number}", days=29 - number)
        with capture_logs() as logs:
            retention_of(database, home).step()
        assert [(entry["what"], entry["count"]) for entry in logs] == [(what, 3)]
        assert [self.left(root) for root in roots] == [{"young0"}, {"young1"}, {"young2"}]
        retention_of(database, home, retention_prepared_bytes=20).step()
        assert [self.left(root) for root in roots] == [set(), {"young1"}, {"young2"}]

    def test_parts_of_a_reference_by_their_own_lock(self, database: Database, home: Path) -> None:
        """A running job renews it with each part; those of a killed one are not renewed."""
        reference = home / "cache" / prepared_data.REFERENCE
        for key, days in (("killed-blocks", 31), ("running-blocks", 0)):
            self.entry(reference, key, days=days)
        retention_of(database, home).step()
        assert self.left(reference) == {"running-blocks"}

    @pytest.mark.parametrize("name", ["old.lock", ".clock"])
    def test_what_a_stage_left_in_place_of_a_lock_hinders_no_other_project(
        self, database: Database, home: Path, root: Path, name: str
    ) -> None:
        """A pipe would make the service wait for ever; a link would lead to its own files."""
        hostile = project_cache.folder_of(home / "cache", "a") / prepared_data.FOLDER
        piped = project_cache.folder_of(home / "cache", "b") / prepared_data.FOLDER
        for folder in (root, hostile, piped):
            self.entry(folder, "old", days=31)
        for folder in (hostile, piped):
            (folder / name).unlink(missing_ok=True)
        (hostile / name).symlink_to(home / "made")
        os.mkfifo(piped / name)
        retention_of(database, home).step()
        assert self.left(root) == set()
        assert not (home / "made").exists()

    def test_using_an_entry_makes_it_young(
        self, database: Database, home: Path, root: Path
    ) -> None:
        self.entry(root, "old", days=31)
        with prepared_data.locked(root, "old"):
            pass
        retention_of(database, home).step()
        assert self.left(root) == {"old"}

    def test_by_size_but_never_what_a_live_job_needs(
        self, database: Database, home: Path, root: Path
    ) -> None:
        for key, days in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
            self.entry(root, key, days=days)
        self.job_with(database, root, "a", state="paused")
        self.job_with(database, root, "b", state="queued", stage="publish")
        self.job_with(database, root, "c", state="failed")
        retention_of(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == {"a", "b"}

    def test_its_age_is_measured_by_the_clock_that_recorded_the_use(
        self, database: Database, home: Path, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not by this host's, which may be wrong by weeks."""
        self.entry(root, "young", days=29)
        self.entry(root, "old", days=31)
        present = time.time()
        monkeypatch.setattr(time, "time", lambda: present + 40 * DAY)
        retention_of(database, home).step()
        assert self.left(root) == {"young"}

    def test_entries_that_a_running_prepare_may_use(
        self, database: Database, home: Path, root: Path
    ) -> None:
        """Its result is in the job's row only after its end, which may be days later."""
        self.entry(root, "found", days=1)
        self.entry(root, "before", days=3)
        job_id = make_job(database)
        claim_job(database, job_id)
        with database.write() as session:
            session.execute(update(AttemptRow).values(started_at=db_now(-2 * DAY)))
        retention_of(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == {"found"}
        put(database, job_id, state="failed", ended_at=db_now())
        retention_of(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == set()

    def test_an_entry_in_use_is_left_for_the_next_time(
        self, database: Database, home: Path, root: Path
    ) -> None:
        self.entry(root, "busy", days=31)
        with (root / "busy.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            retention_of(database, home).step()
            assert self.left(root) == {"busy"}
        retention_of(database, home).step()
        assert self.left(root) == set()

    def test_the_next_is_removed_instead_of_one_in_use(
        self, database: Database, home: Path, root: Path
    ) -> None:
        """There is room for two of the four."""
        for key, days in (("busy", 5), ("needed", 4), ("old", 3), ("young", 2)):
            self.entry(root, key, days=days)
        self.job_with(database, root, "needed", state="queued")
        with (root / "busy.lock").open() as lock, capture_logs() as logs:
            fcntl.flock(lock, fcntl.LOCK_EX)
            retention_of(database, home, retention_prepared_bytes=20).step()
        assert self.left(root) == {"busy", "needed"}
        assert [(e["what"], e["count"], e["ids"]) for e in logs] == [
            ("prepared data", 2, ["prepared/old", "prepared/young"])
        ]

    def test_an_entry_used_shortly_before_a_running_prepare_is_kept(
        self, database: Database, home: Path, root: Path
    ) -> None:
        """Half an hour before its start is within the hour of grace; two hours are not."""
        self.entry(root, "late", days=2 + 0.5 / 24)
        self.entry(root, "early", days=2 + 2 / 24)
        claim_job(database, make_job(database))
        with database.write() as session:
            session.execute(update(AttemptRow).values(started_at=db_now(-2 * DAY)))
        with capture_logs() as logs:
            retention_of(database, home, retention_prepared_bytes=0).step()
        assert self.left(root) == {"late"}
        assert [entry["ids"] for entry in logs] == [["prepared/early"]]

    def test_nothing_is_reported_if_nothing_is_removed(
        self, database: Database, home: Path, root: Path
    ) -> None:
        self.entry(root, "young", days=1)
        with capture_logs() as logs:
            retention_of(database, home, retention_workspace_days=1, retention_upload_days=1).step()
        assert logs == []

    def test_half_removed_and_half_built_entries(
        self, database: Database, home: Path, root: Path
    ) -> None:
        for name in ("a.pruned", "b.tmp", "c.tmp"):
            (root / name / "train").mkdir(parents=True)
        (root / "note").touch()  # no entry
        for name in ("c.tmp", "note"):
            os.utime(root / name, (0, 0))
        with (root / "c.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it is being built
            retention_of(database, home).step()
        assert self.left(root) == {"c.tmp"}
        assert not (root / "note.lock").exists()  # nor was it treated as one

    def test_a_retry_and_a_removal_take_turns(
        self, database: Database, home: Path, root: Path, unreachable: Dispatcher
    ) -> None:
        """Whichever is first, the retried job is never at a stage whose data is removed."""
        settings = Settings(home=home)
        (home / "m").mkdir()
        result = {"model_dir": "m", "tokenizer_dir": "m", "data_fingerprint": "k"}
        unknown: dict[str, Any] = {"model_revision": None, "dataset_revision": None, "splits": {}}
        for number in range(12):
            folder = self.entry(root, f"k{number}", days=31)
            results = {
                "prepare": {**result, **unknown, "prepared_dir": str(folder.relative_to(home))}
            }
            job_id = self.job_with(database, root, "", state="failed", results=results)
            barrier = threading.Barrier(2)

            def sweep(barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                retention_of(database, home).step()

            sweeping = threading.Thread(target=sweep)
            sweeping.start()
            barrier.wait()
            retry(database, unreachable, settings, EVERYTHING, job_id)
            sweeping.join(20)
            assert get(database, job_id).stage == ("train" if folder.is_dir() else "prepare")
