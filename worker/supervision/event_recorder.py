"""Writes a stage's events to the database in batches, on a thread; an outage only delays them."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

import structlog
from sqlalchemy.exc import DBAPIError

from service.contract.stage.events import (
    ArtifactWritten,
    CheckpointSaved,
    Notice,
    PhaseChanged,
    Progress,
    StageEvent,
)
from service.store.database import Database, is_outage
from service.store.jobs import attempt_reports
from service.store.jobs.claims import Claim
from service.store.projects import quotas
from service.system.safe_files import is_inside
from worker.storage import atomic_dir
from worker.supervision.checkpoint_pushes import CheckpointPushes

log = structlog.get_logger(__name__)

_MOST_WAITING: Final = 10_000
# One transaction holds the job's row, and the whole of SQLite. The heartbeat and everyone else get
# their turn in between.
_MOST_IN_BATCH: Final = 500
_TURN_SECONDS: Final = 0.05
_ATTEMPTS: Final = "attempts/"


class EventRecorder:
    """`add` never blocks: events are queued in order until the database has stored them."""

    def __init__(
        self,
        database: Database,
        claim: Claim,
        workspace: Path,
        interval: float = 0.5,
        pushes: CheckpointPushes | None = None,
    ) -> None:
        self._database = database
        self._claim = claim
        self._workspace = workspace
        self._interval = interval
        self._pushes = pushes
        self._waiting: list[StageEvent] = []
        self._batch: list[StageEvent] = []
        self._unconfirmed: attempt_reports.Recorded | None = None
        self._pruned: list[str] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._over_bytes = False
        self.is_stale = False
        self.refusal: StageEvent | None = None
        """The first event that names what is not the job's; the stage must end."""
        self.fault: str | None = None
        """Why the events can never be recorded, if they cannot."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._interval)

    def add(self, event: StageEvent) -> None:
        if not self._is_honest(event):
            self.refusal = self.refusal or event
            return
        with self._lock:
            self._waiting.append(event)

    def has_room(self) -> bool:
        with self._lock:
            return len(self._waiting) < _MOST_WAITING

    def _is_honest(self, event: StageEvent) -> bool:
        """Whether a file or folder that it names is in one of this job's attempts, and reached
        without a link."""
        if not isinstance(event, CheckpointSaved | ArtifactWritten):
            return True
        file = event.path
        if isinstance(event, CheckpointSaved):
            file = f"{event.path}/{atomic_dir.MANIFEST}"
        return event.path.startswith(_ATTEMPTS) and is_inside(self._workspace, file)

    def is_empty(self) -> bool:
        with self._lock:
            return not self._waiting and not self._batch

    def drain(self, give_up: Callable[[], bool]) -> bool:
        """Wait until all events are recorded (True), cannot be, or the caller gives up (False)."""
        while not self.is_empty() and not self._has_failed():
            if give_up():
                return False
            time.sleep(0.02)
        return not self._has_failed()

    def _has_failed(self) -> bool:
        return self.is_stale or self.fault is not None

    def _run(self) -> None:
        while not self._stop.wait(self._pause()) and not self._has_failed():
            try:
                self._flush()
                self._remove_pruned()
            except DBAPIError as error:
                if is_outage(error):
                    log.warning("events.postponed", error=str(error.orig))
                else:
                    log.exception("events.rejected")
                    self.fault = type(error.orig).__name__
            except Exception as error:
                log.exception("events.rejected")
                self.fault = type(error).__name__

    def _pause(self) -> float:
        """Seconds until the next batch."""
        with self._lock:
            has_more = not self._batch and len(self._waiting) >= _MOST_IN_BATCH
        return min(_TURN_SECONDS, self._interval) if has_more else self._interval

    def _flush(self) -> None:
        with self._lock:
            if not self._batch:
                events = compact(self._waiting)
                self._batch, self._waiting = events[:_MOST_IN_BATCH], events[_MOST_IN_BATCH:]
        if not self._batch:
            return
        with self._database.write() as session:
            recorded = self._unconfirmed
            if recorded is None or not attempt_reports.is_committed(
                session, self._claim.job_id, recorded
            ):
                recorded = attempt_reports.record(
                    session, self._claim.job_id, self._claim.epoch, self._batch
                )
            # Until COMMIT has returned, it is unknown whether the batch is stored.
            self._unconfirmed = recorded
        self._unconfirmed = None
        if recorded is None:
            self.is_stale = True
            return
        saved = [event for event in self._batch if isinstance(event, CheckpointSaved)]
        if saved and self._pushes is not None:
            self._pushes.offer(saved[-1])
        self._pruned += recorded.pruned
        with self._lock:
            self._batch = []
        if saved:
            self._note_bytes()

    def _note_bytes(self) -> None:
        """Tell the user once that the project stores too much: the next stage will not begin."""
        if self._over_bytes:
            return
        with self._database.read() as session:
            over = quotas.over_bytes(session, self._claim.project_id)
        if over is not None:
            self._over_bytes = True
            message = (
                f"The project stores {over[0]:,} bytes and may store {over[1]:,}. This stage "
                "continues, but none begins until files or jobs of the project are deleted."
            )
            self.add(Notice(message=message, data={"used": over[0], "limit": over[1]}))

    def _remove_pruned(self) -> None:
        """After COMMIT: a crash in between leaves a folder too many, never one too few.

        A checkpoint that is being pushed is removed after its push.
        """
        pushes = self._pushes
        due = [path for path in self._pruned if pushes is None or not pushes.holds(path)]
        self._pruned = [path for path in self._pruned if path not in due]
        for path in due:
            folder = (self._workspace / path).resolve()
            if folder.is_relative_to(self._workspace) and folder != self._workspace:
                try:
                    atomic_dir.remove(folder)
                except OSError:
                    log.exception("checkpoint.removal_failed", path=path)


def compact(events: Sequence[StageEvent]) -> list[StageEvent]:
    """Drop progress events that a later one of the same phase overwrites."""
    kept: list[StageEvent] = []
    overwritten = False
    for event in reversed(events):
        if isinstance(event, PhaseChanged):
            overwritten = False
        if isinstance(event, Progress):
            if overwritten:
                continue
            overwritten = True
        kept.append(event)
    return kept[::-1]
