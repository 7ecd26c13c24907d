"""The servers of the tests are found, started, or reported as missing."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, make_url, text

from tests.support import packages, services
from tests.support.postgres_server import PostgresServer
from tests.support.processes import is_alive


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


class TestBrokerServer:
    @pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
    def test_ends_with_a_test_process_that_is_killed(self) -> None:
        server = services.BrokerServer(services.valkey_binary())
        read, write = os.pipe()
        test_process = os.fork()
        if test_process == 0:
            try:
                server.start()
                os.write(write, str(server.pid).encode())
                signal.pause()
            finally:
                os._exit(1)
        os.close(write)
        broker = psutil.Process(int(os.read(read, 20)))
        os.close(read)
        try:
            os.kill(test_process, signal.SIGKILL)
            os.waitpid(test_process, 0)
            services.wait_until(lambda: not is_alive(broker), 10, "its end")
        finally:
            with suppress(psutil.NoSuchProcess):
                broker.kill()
            server.__exit__()


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
