"""Checks what a stage reports, as untrusted input: a report that no stage of ours sends ends the
stage, and reports that are too much for the database are not kept."""

import re
from collections.abc import Sequence
from typing import Final

from service.contract.failures import Failure, FailureCode, StageError
from service.contract.stage.events import (
    ArtifactWritten,
    CheckpointSaved,
    Failed,
    Finished,
    Metric,
    Notice,
    Progress,
    ReadyToCommit,
    ReferenceSaved,
    StageEvent,
)
from service.contract.stage.stages import StageRequest
from worker import failures
from worker.supervision import stage_views
from worker.supervision.event_recorder import EventRecorder

MOST_EVENTS: Final = 5_000_000
MOST_BYTES: Final = 2 * 1024**3
"""Of one attempt, without its files. A training of a million steps that logs and evaluates at each
of them sends four million events, of about 1 GB with ten numbers in each."""
MOST_FILES: Final = 2_000_000
MOST_NAMES: Final = 1024**2
"""Characters of all names of metrics: the job's row holds the last value of each."""
LONGEST_MESSAGE: Final = 10_000
_LONGEST_NAME: Final = 500
_LONGEST_PATH: Final = 1_000
_LARGEST_STEP: Final = 2**31 - 1
_LARGEST_FILE: Final = 2**63 - 1
_ROW: Final = 100
_NUMBER: Final = 12
"""Bytes of a row without its texts, and of a number."""
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class StageReports:
    """`recorder` receives what is kept."""

    def __init__(self, request: StageRequest, recorder: EventRecorder) -> None:
        self._request = request
        self._recorder = recorder
        self._events = self._bytes = self._files = self._named = 0
        self._names: set[str] = set()
        self._is_full = False
        self._impossible: StageEvent | None = None
        self._last: Finished | Failed | None = None

    @property
    def refusal(self) -> StageEvent | None:
        """What no stage of ours reports; the stage must end."""
        return self._impossible or self._recorder.refusal

    def take(self, events: Sequence[StageEvent]) -> None:
        for event in events:
            if isinstance(event, Failed):
                self._last = Failed(failure=failures.small(event.failure))
            elif isinstance(event, Finished):
                self._last = event
            elif not self._is_possible(event):
                self._impossible = self._impossible or event
            elif self._has_room_for(event):
                self._recorder.add(_cut(event))

    def outcome(self) -> Finished | Failed | None:
        """How the stage ended: its own report if that is credible."""
        if self.refusal is not None:
            message = f"The stage reported what no stage reports: {self.refusal!r}"[:500]
            return Failed(failure=Failure.from_code(FailureCode.STAGE_UNTRUSTWORTHY, message))
        if isinstance(self._last, Finished):
            try:
                stage_views.require_own(self._request, self._last)
            except StageError as error:
                return Failed(failure=error.failure)
        return self._last

    def _is_possible(self, event: StageEvent) -> bool:
        match event:
            case CheckpointSaved():
                self._files += 1
                is_named = bool(_HASH.fullmatch(event.manifest_sha256))
                return is_named and self._is_file(event) and 0 <= event.step <= _LARGEST_STEP
            case ArtifactWritten():
                self._files += 1
                is_named = bool(_HASH.fullmatch(event.sha256)) and len(event.name) <= _LONGEST_NAME
                return is_named and self._is_file(event)
            case Metric() | Progress():
                return event.step <= _LARGEST_STEP
            case ReferenceSaved():
                return event.features <= _LARGEST_STEP
            case ReadyToCommit():
                return False
        return True

    def _is_file(self, event: CheckpointSaved | ArtifactWritten) -> bool:
        is_path = len(event.path) <= _LONGEST_PATH
        return is_path and 0 <= event.bytes <= _LARGEST_FILE and self._files <= MOST_FILES

    def _has_room_for(self, event: StageEvent) -> bool:
        """A job cannot continue from a checkpoint that is not noted, so files always are. Progress
        replaces the one before."""
        if isinstance(event, Progress | CheckpointSaved | ArtifactWritten):
            return True
        if not self._is_full:
            self._count(event)
            limits = (MOST_EVENTS, MOST_BYTES, MOST_NAMES)
            used = (self._events, self._bytes, self._named)
            self._is_full = any(one > most for one, most in zip(used, limits, strict=True))
            if self._is_full:
                self._recorder.add(_full(self._events, self._bytes))
        return not self._is_full

    def _count(self, event: StageEvent) -> None:
        self._events += 1
        self._bytes += _ROW
        if isinstance(event, Notice):
            self._bytes += len(event.message) + len(repr(event.data))
        elif isinstance(event, Metric):
            self._bytes += sum(len(name) + _NUMBER for name in event.values)
            new = event.values.keys() - self._names
            self._named += sum(map(len, new))
            self._names |= new


def _full(events: int, size: int) -> Notice:
    message = (
        f"This attempt has reported {events:,} numbers, notices and phases of {size:,} bytes. More "
        "of them are not kept; the stage continues, and its checkpoints and files are noted. To "
        "keep the numbers of all steps, raise `training.logging_steps` and `training.eval_steps`."
    )
    return Notice(message=message, data={"events": events, "bytes": size})


def _cut(event: StageEvent) -> StageEvent:
    if isinstance(event, Notice) and len(event.message) > LONGEST_MESSAGE:
        return event.model_copy(update={"message": f"{event.message[:LONGEST_MESSAGE]}…"})
    return event
