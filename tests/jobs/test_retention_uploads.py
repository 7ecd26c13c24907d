"""Retention of uploads: by age and size, and never one that a job needs."""

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from service.errors import UploadInUseError
from service.jobs.commands import pause
from service.jobs.dispatch import Dispatcher
from service.jobs.retention import Item
from service.store.database import Database, db_now
from service.store.files import files
from service.store.jobs import state
from service.store.scope import EVERYTHING
from service.store.tables.files import FileRow, RemovalRow
from tests.jobs.retention import DAY, retention_of
from tests.support.factories import add_file, make_spec, submit
from tests.support.store.job_rows import put


class TestUploads:
    def add(self, database: Database, home: Path, *, days: float, size: int = 10) -> str:
        file_id = add_file(database, size=size)
        with database.write() as session:
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
        with capture_logs() as logs:
            retention_of(database, home, retention_upload_days=8).step()
        assert self.left(database, home) == {used, young}
        assert [(entry["what"], entry["ids"]) for entry in logs] == [("upload", [unused])]

    def test_one_that_somebody_has_deleted_meanwhile(self, database: Database, home: Path) -> None:
        """Its bytes are free: no other goes in its place."""
        item = Item(files.new_id(), 9 * DAY, 10)
        assert retention_of(database, home)._remove_upload(item)

    def test_a_file_without_a_row(self, database: Database, home: Path) -> None:
        """The API was killed after it named the file and before it wrote the row."""
        rowless, whole = files.new_id(), self.add(database, home, days=0)
        (home / "files" / rowless).write_bytes(b"x")
        with database.write() as session:
            files.announce(session, rowless)
        retention_of(database, home).step()
        assert (home / "files" / rowless).is_file()
        with database.write() as session:
            session.execute(update(RemovalRow).values(created_at=db_now(-1)))
        retention_of(database, home).step()
        assert self.left(database, home) == {whole}

    def test_a_deleted_file_that_a_crash_left(self, database: Database, home: Path) -> None:
        file_id = self.add(database, home, days=0)
        with database.write() as session:
            assert files.remove(session, EVERYTHING, file_id) == f"files/{file_id}"
        assert (home / "files" / file_id).is_file()
        retention_of(database, home).step()
        assert self.left(database, home) == set()

    def test_by_size_but_never_what_a_job_needs(
        self, database: Database, home: Path, unreachable: Dispatcher
    ) -> None:
        needed, first, second = (self.add(database, home, days=days) for days in (9, 8, 7))
        job_id = submit(database, unreachable, make_spec(**self.names(needed))).job_id
        pause(database, EVERYTHING, job_id)
        with database.write() as session:
            session.execute(update(FileRow).values(last_used_at=None))
        limits = {"retention_upload_bytes": 20, "retention_upload_days": 8.5}
        retention_of(database, home, **limits).step()
        assert self.left(database, home) == {needed, second}
        assert first not in self.left(database, home)

    def test_an_expired_one_goes_when_no_job_needs_it(
        self, database: Database, home: Path, unreachable: Dispatcher
    ) -> None:
        needed, unused, lasting = (self.add(database, home, days=1) for _ in range(3))
        job_id = submit(database, unreachable, make_spec(**self.names(needed))).job_id
        with database.write() as session:
            expired = update(FileRow).where(FileRow.id.in_([needed, unused]))
            session.execute(expired.values(expires_at=db_now(-1)))
        with capture_logs() as logs:
            retention_of(database, home).step()
        assert self.left(database, home) == {needed, lasting}
        assert [(entry["what"], entry["ids"]) for entry in logs] == [("expired file", [unused])]
        with database.read() as session:
            assert files.existing(session, EVERYTHING, [needed, lasting]) == {lasting}
        put(database, job_id, state="succeeded", ended_at=db_now())
        retention_of(database, home).step()
        assert self.left(database, home) == {lasting}

    def test_a_job_that_is_created_while_the_file_is_checked(
        self, database: Database, home: Path
    ) -> None:
        """The sweep has found the file unused, but the job is created first."""
        file_id = self.add(database, home, days=9)
        sweeps = retention_of(database, home, retention_upload_days=8)
        sweeping = threading.Thread(target=sweeps.step)
        with database.write() as session:
            files.use(session, EVERYTHING, [file_id])
            state.insert(session, state.new_job_id(), make_spec(**self.names(file_id)))
            sweeping.start()
            sweeping.join(0.3)
            assert sweeping.is_alive()
        sweeping.join(10)
        assert self.left(database, home) == {file_id}
        with database.write() as session, pytest.raises(UploadInUseError):
            files.remove(session, EVERYTHING, file_id)
