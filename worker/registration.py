"""The worker's own row: written by its main process, on a thread, for as long as it lives."""

import threading

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.store import workers
from service.store.database import Database
from service.store.workers import WorkerInfo

log = structlog.get_logger(__name__)


class Registration:
    """Registers at `start`, says every beat that the worker lives, removes the row at `stop`."""

    def __init__(self, url: str, info: WorkerInfo, beat_seconds: float) -> None:
        # An engine of its own: the pool's processes fork, and connections must not go with them.
        self._database = Database(url)
        self._info = info
        self._beat_seconds = beat_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(self._beat_seconds)
        try:
            with self._database.write() as session:
                workers.remove(session, self._info.id)
        except SQLAlchemyError as error:
            log.warning("the reconciler will forget this worker", error=str(error.__cause__))
        self._database.dispose()

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            wait = self._beat_seconds
            try:
                self._say()
            except SQLAlchemyError as error:
                log.warning("the worker is not registered", error=str(error.__cause__ or error))

    def _say(self) -> None:
        with self._database.write() as session:
            if not workers.seen(session, self._info.id):
                workers.register(session, self._info)
