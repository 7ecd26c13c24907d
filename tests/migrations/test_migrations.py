"""The migrations build exactly what the models say, and upgrade what a release has made; databases
of pre-releases are refused."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.exc import DatabaseError

from service.cli.servers.servers import require_schema
from service.store import schema
from service.store.database import Database
from service.store.database_faults import described, is_unusable
from service.store.tables.base import Base
from worker.__main__ import _require_release


class TestSchema:
    def test_migrated_database_is_current(self, database: Database) -> None:
        with database.engine.connect() as connection:
            assert schema.is_current(connection)

    def test_migrations_and_models_agree(self, database: Database) -> None:
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, Base.metadata) == []

    def test_upgrade_twice_changes_nothing(self, database: Database) -> None:
        schema.upgrade(database.engine)
        with database.engine.connect() as connection:
            assert schema.is_current(connection)


def rows_of(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    found = MetaData()
    found.reflect(connection)
    return {
        name: [dict(row) for row in connection.execute(table.select()).mappings()]
        for name, table in found.tables.items()
        if name != "alembic_version"
    }


# Made with that release: `sqlite3 finetune.db .dump`. Each release adds its own.
@pytest.mark.parametrize("release", ["release_0_1_0.sql"])
def test_a_database_of_a_release_keeps_its_rows(tmp_path: Path, release: str) -> None:
    path = tmp_path / "finetune.db"
    with sqlite3.connect(path) as made:
        made.executescript(Path(__file__).with_name(release).read_text(encoding="utf-8"))
    made.close()
    database = Database(f"sqlite:///{path}")
    with database.engine.connect() as connection:
        before = rows_of(connection)
    schema.upgrade(database.engine)
    with database.engine.connect() as connection:
        assert schema.is_current(connection)
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        after = rows_of(connection)
    database.dispose()
    assert len(before["jobs"]) == 3
    for table, rows in before.items():
        kept = [{name: row[name] for name in rows[0]} for row in after[table]] if rows else []
        assert kept == rows


def test_tables_of_another_program_are_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as made:
        made.execute("CREATE TABLE jobs (title TEXT)")
    made.close()
    with (
        Database(f"sqlite:///{tmp_path}/other.db") as database,
        pytest.raises(
            schema.UnusableSchemaError, match=r"has tables of another program \(`jobs`\)"
        ),
    ):
        schema.upgrade(database.engine)
    with sqlite3.connect(tmp_path / "other.db") as made:
        assert made.execute("SELECT name FROM sqlite_master").fetchall() == [("jobs",)]
    made.close()


class TestUnusable:
    """The driver's reason, and what to do."""

    def refusal(self, url: str) -> str:
        with Database(url) as database, pytest.raises(DatabaseError) as raised:
            schema.upgrade(database.engine)
        assert is_unusable(raised.value)
        return described(url, raised.value)

    def test_a_file_that_is_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "finetune.db"
        with Database(f"sqlite:///{path}") as database:
            schema.upgrade(database.engine)
        content = bytearray(path.read_bytes())
        content[4096 : 4 * 4096] = b"\xff" * 3 * 4096
        path.write_bytes(content)
        assert self.refusal(f"sqlite:///{path}") == (
            f"the database sqlite:///{path} cannot be used (database disk image is malformed): the "
            "file is damaged: restore it from a backup"
        )

    def test_a_folder(self, tmp_path: Path) -> None:
        assert self.refusal(f"sqlite:///{tmp_path}").endswith(
            "(unable to open database file): its path must be a file in a folder that this user "
            "may read and write"
        )

    def test_a_worker_does_not_wait_for_what_will_never_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "a.db").write_text("text\n" * 500)
        with pytest.raises(SystemExit, match="the file holds something else: move it away"):
            _require_release(f"sqlite:///{tmp_path}/a.db")


class TestOtherReleases:
    @pytest.fixture
    def revision(self, request: pytest.FixtureRequest, database: Database) -> Iterator[str]:
        """The database says that it is at this one; up to date afterwards: Postgres is shared."""
        with database.write() as session:
            current = session.scalar(text("SELECT version_num FROM alembic_version"))
            session.execute(text(f"UPDATE alembic_version SET version_num = '{request.param}'"))
        yield request.param
        with database.write() as session:
            session.execute(text(f"UPDATE alembic_version SET version_num = '{current}'"))

    @pytest.mark.parametrize("revision", ["0001", "0021"], indirect=True)
    def test_a_pre_release_is_refused_with_what_to_do(
        self, database: Database, database_url: str, revision: str
    ) -> None:
        words = (
            rf"^the database .* was made by a pre-release of finetune \(revision {revision}\), "
            r"which this release does not upgrade: start with a new home \(FINETUNE_HOME\) or a "
            r"new database \(FINETUNE_DATABASE_URL\)$"
        )
        with pytest.raises(schema.UnusableSchemaError, match=words):
            schema.upgrade(database.engine)
        with pytest.raises(schema.UnusableSchemaError, match=words):
            require_schema(database)
        with pytest.raises(SystemExit, match=words):
            _require_release(database_url)

    @pytest.mark.parametrize("revision", ["cc1f77228345"], indirect=True)
    def test_so_is_one_of_another_program(
        self, database: Database, database_url: str, revision: str
    ) -> None:
        words = rf"was made by another program \(revision '{revision}'\): start with a new home"
        with pytest.raises(schema.UnusableSchemaError, match=words):
            schema.upgrade(database.engine)
        with pytest.raises(SystemExit, match=words):
            _require_release(database_url)

    @pytest.mark.parametrize("revision", ["0.9.0"], indirect=True)
    def test_only_the_control_plane_refuses_a_newer_release(
        self, database: Database, database_url: str, revision: str
    ) -> None:
        with pytest.raises(schema.UnusableSchemaError, match=r"newer release .*\(revision 0\.9\.0"):
            schema.upgrade(database.engine)
        with pytest.raises(schema.UnusableSchemaError, match=r"install that release$"):
            require_schema(database)
        _require_release(database_url)
