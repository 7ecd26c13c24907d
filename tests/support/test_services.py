"""The servers of the tests are found, started, or reported as missing."""

import os
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.support import packages, services
from tests.support.postgres_server import PostgresServer


class TestOwnPostgres:
    def test_serves_and_leaves_nothing(self) -> None:
        server = PostgresServer(services.free_port())
        try:
            services.wait_until(lambda: services.postgres_answers(server.url), 60, "Postgres")
            with services.postgres_database(server.url) as url:
                engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
                with engine.connect() as connection:
                    assert connection.scalar(text("SELECT 1")) == 1
                engine.dispose()
        finally:
            server.stop()
        assert not server.runs()
        assert not server.folder.exists()


class TestProgram:
    def test_the_newest_in_a_folder_is_preferred_to_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for version in ("15", "16"):
            program = tmp_path / version / "bin" / "initdb"
            program.parent.mkdir(parents=True)
            program.touch()
        monkeypatch.setenv("PATH", "")
        folders = str(tmp_path / "*" / "bin").lstrip(os.sep)
        assert packages.program("initdb", "postgresql", folders) == str(program)

    def test_a_missing_one_is_named_and_nothing_is_installed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.delenv("FINETUNE_TEST_INSTALL", raising=False)
        with pytest.raises(packages.UnavailableError, match="no no-such-server here"):
            packages.program("no-such-server", "no-such-package")
