"""Checkpoints that a background thread writes while the training continues."""

from functools import partial
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

from service.contract.stage.events import CheckpointSaved
from service.contract.states import Phase
from worker.devices import memory
from worker.storage import atomic_dir
from worker.training.checkpointing import state as checkpoint
from worker.training.checkpointing.host_buffers import HostBuffers
from worker.training.checkpointing.state import Snapshot, State
from worker.training.distributed.ranks import Ranks
from worker.training.reporting.reporter import Reporter


class Saver:
    """Writes and announces the checkpoints of one training, one at a time.

    Every process has one, and the first process writes. As a context manager it waits for the
    checkpoint in the background when the training fails.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._buffers = HostBuffers()
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self._noticed_waiting = False

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """After an error: leave no checkpoint half written, and none unannounced."""
        if error is None:
            return
        try:
            self._wait()
        except Exception as failure:
            error.add_note(f"The checkpoint in the background failed, too: {failure}")

    def save(self, state: State, folder: Path, *, is_best: bool, in_background: bool) -> None:
        """Write the present state to `folder`, and announce it once it is on disk.

        `in_background`: a thread does both if there is memory for a copy of the state. Otherwise
        all processes wait. Raises StageError(disk_full), also of the checkpoint before.
        """
        progress = state.progress
        event = {
            "path": progress.last_checkpoint,
            "step": progress.step,
            "metric": progress.metric,
            "best": is_best,
        }
        self._reporter.pause(Phase.SAVING)
        self._wait()
        snapshot = checkpoint.snapshot(state)
        in_background = in_background and self._has_memory_for_copy(state, snapshot)
        if snapshot is not None and in_background:
            kept = snapshot if state.strategy.states_are_copies else self._buffers.copied(snapshot)
            write = partial(self._write_and_announce, kept, folder, event)
            self._thread = Thread(target=write, name="checkpoint", daemon=True)
            self._thread.start()
        elif snapshot is not None:
            checkpoint.write(snapshot, folder)
        if not in_background:
            state.ranks.barrier()
        self._reporter.start()
        if not in_background:
            self._announce(folder, event)

    def raise_failure(self) -> None:
        """Raise the error of the background thread, if it has ended with one. Never waits."""
        if not self._is_writing:
            self._wait()

    def finish(self, ranks: Ranks) -> None:
        """Wait, in all processes, until no checkpoint is being written; raise its error."""
        if self._is_writing:
            self._reporter.pause(Phase.SAVING)
        self._wait()
        ranks.barrier()

    @property
    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _write_and_announce(self, snapshot: Snapshot, folder: Path, event: dict[str, Any]) -> None:
        try:
            checkpoint.write(snapshot, folder)
            self._announce(folder, event)
        # Every error: one that the training's thread does not raise would be lost.
        except BaseException as error:
            self._failure = error

    def _announce(self, folder: Path, event: dict[str, Any]) -> None:
        size, digest = atomic_dir.total_bytes(folder), atomic_dir.manifest_sha256(folder)
        self._reporter.send(CheckpointSaved(bytes=size, manifest_sha256=digest, **event))

    def _has_memory_for_copy(self, state: State, snapshot: Snapshot | None) -> bool:
        """Half of the free memory is left to the training. All processes must call it."""
        if state.strategy.states_are_copies:  # the snapshot is one
            return True
        needed = 0 if snapshot is None else self._buffers.missing_bytes(snapshot)
        has_memory = state.ranks.broadcast(needed <= memory.free_bytes() // 2)
        if not (has_memory or self._noticed_waiting):
            self._noticed_waiting = True
            self._reporter.notice(
                f"Training waits while checkpoints are written: a copy of {needed:,} bytes would "
                "take more than half of the free memory",
                copy_bytes=needed,
            )
        return has_memory
