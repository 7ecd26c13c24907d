"""Renews a claim's lease on its own thread, and reads what the user has requested."""

import threading
import time
from typing import Self

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import claims
from service.store.jobs.claims import Claim

log = structlog.get_logger(__name__)


class Heartbeat:
    """Renews the lease every `beat_seconds` and reads the job's state every `poll_seconds`."""

    def __init__(self, database: Database, settings: Settings, claim: Claim) -> None:
        self._database = database
        self._settings = settings
        self._claim = claim
        self._state: JobState | None = JobState.RUNNING
        self._last_beat = time.monotonic()
        self._stop = threading.Event()
        # A daemon: a database that never answers must not keep the worker from exiting.
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._settings.poll_seconds)

    @property
    def is_stale(self) -> bool:
        """The claim was lost: this attempt must end and write nothing."""
        return self._state is None

    @property
    def is_cancelling(self) -> bool:
        return self._state is JobState.CANCELLING

    @property
    def is_pausing(self) -> bool:
        return self._state is JobState.PAUSING

    @property
    def seconds_since_beat(self) -> float:
        """Since the last beat that reached the database."""
        return time.monotonic() - self._last_beat

    def _run(self) -> None:
        while self._state is not None and not self._stop.wait(self._pause()):
            try:
                self._beat()
            except SQLAlchemyError as error:
                cause = str(error.__cause__ or error)
                log.warning(
                    "heartbeat.missed",
                    error=cause,
                    seconds_since_beat=round(self.seconds_since_beat, 1),
                )

    def _pause(self) -> float:
        return min(self._settings.poll_seconds, self._settings.beat_seconds)

    def _beat(self) -> None:
        job_id, epoch = self._claim.job_id, self._claim.epoch
        # Beat now if the next poll would come too late.
        if self.seconds_since_beat + self._pause() < self._settings.beat_seconds:
            with self._database.read() as session:
                self._state = claims.requested_state(session, job_id, epoch)
            return
        started = time.monotonic()
        with self._database.write() as session:
            self._state = claims.renew(session, job_id, epoch, self._settings.lease_seconds)
        # The lease starts at some moment after `started`; counting from `started` is safe.
        self._last_beat = started
