"""The worker's row in the database, kept up to date by a thread of its main process."""

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.contract import worker_needs
from service.store.database import Database
from service.store.scheduling import registration
from service.store.scheduling.registration import WorkerInfo

log = structlog.get_logger(__name__)


def packages() -> list[str]:
    """Those of `worker_needs.PACKAGES` that are installed here; none of them is imported."""
    return [name for name in worker_needs.PACKAGES if importlib.util.find_spec(name) is not None]


class Registration:
    """Registers the worker at `start`, sends heartbeats, and removes the row at `stop`."""

    def __init__(self, url: str, info: WorkerInfo, beat_seconds: float) -> None:
        self._database = Database(url)
        # Celery forks this process at any time to replace a dead one of its pool. No connection
        # may be open then: SQLite's locks belong to the process, so the child would write without
        # any, and two processes must not share a socket.
        self._connected = threading.Lock()
        os.register_at_fork(
            before=self._connected.acquire,
            after_in_parent=self._connected.release,
            after_in_child=self._connected.release,
        )
        self._info = info
        self._doctor_report: dict[str, Any] | None = None
        self._beat_seconds = beat_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set_doctor_report(self, doctor: dict[str, Any]) -> None:
        """Write the results of the quick checks with the next heartbeat; from any thread."""
        self._doctor_report = doctor

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(self._beat_seconds)
        try:
            with self._connection() as session:
                registration.remove(session, self._info.id)
        except SQLAlchemyError as error:
            log.warning("worker.unregister_failed", error=str(error.__cause__))

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            wait = self._beat_seconds
            try:
                self._beat()
            except SQLAlchemyError as error:
                log.warning("worker.heartbeat_failed", error=str(error.__cause__ or error))

    def _beat(self) -> None:
        doctor = self._doctor_report
        with self._connection() as session:
            if not registration.seen(session, self._info.id):
                registration.register(session, replace(self._info, doctor=doctor))
            elif doctor is not None and doctor != self._info.doctor:
                registration.examined(session, self._info.id, doctor)
        self._info = replace(self._info, doctor=doctor)

    @contextmanager
    def _connection(self) -> Iterator[Session]:
        """A transaction on a connection of its own; nothing forks while it is open."""
        with self._connected:
            try:
                with self._database.write() as session:
                    yield session
            finally:
                self._database.dispose()
