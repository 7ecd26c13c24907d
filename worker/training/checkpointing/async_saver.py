"""Checkpoints written by a thread of their own, beside the steps that follow."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Protocol

from worker.training import memory
from worker.training.checkpointing import state as checkpoint
from worker.training.checkpointing.host_buffers import Buffers
from worker.training.checkpointing.state import Snapshot, State
from worker.training.plan import Plan


class _Notice(Protocol):
    def __call__(self, message: str, **data: object) -> None: ...


class Saver:
    """Of one training, in each of its processes; the first one writes.

    One checkpoint at a time: the next one waits. What the thread fails with is raised where the
    training looks or waits.
    """

    def __init__(self, notice: _Notice) -> None:
        self._notice = notice
        self._buffers = Buffers()
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self._has_told = False

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(
        self,
        state: State,
        plan: Plan,
        folder: Path,
        announce: Callable[[], None],
        *,
        beside: bool,
    ) -> bool:
        """Write `folder` before it returns, to all processes; True. Or False: the thread writes it,
        and calls `announce` when it is on disk. So it is asked for by `beside`, if there is memory.

        Raises StageError(disk_full), also of the checkpoint before.
        """
        self.wait()
        taken = checkpoint.snapshot(state, plan)
        beside = beside and self._has_room(state, taken)
        if taken is not None and beside:
            kept = taken if state.strategy.gives_copies else self._buffers.copied(taken)
            self._thread = Thread(
                target=self._write, args=(kept, folder, announce), name="checkpoint", daemon=True
            )
            self._thread.start()
        elif taken is not None:
            checkpoint.write(taken, folder)
        if not beside:
            state.ranks.wait()
        return not beside

    def look(self) -> None:
        """Raise what the thread has failed with, if it has ended."""
        if not self.is_writing:
            self.wait()

    def wait(self) -> None:
        """Until nothing is being written. Raises what the thread has failed with."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def leave(self, error: BaseException) -> None:
        """The training ends by `error`: no checkpoint is left half written, and none untold."""
        try:
            self.wait()
        except Exception as failure:
            error.add_note(f"The checkpoint beside it failed, too: {failure}")

    def _write(self, taken: Snapshot, folder: Path, announce: Callable[[], None]) -> None:
        try:
            checkpoint.write(taken, folder)
            announce()
        # All of it: what is not raised in the training's thread would be lost.
        except BaseException as error:
            self._failure = error

    def _has_room(self, state: State, taken: Snapshot | None) -> bool:
        """All processes ask. Half of what is free is left to the training."""
        if state.strategy.gives_copies:  # made already
            return True
        needed = 0 if taken is None else self._buffers.missing_bytes(taken)
        has_room = state.ranks.from_first(needed <= memory.free_bytes() // 2)
        if not (has_room or self._has_told):
            self._has_told = True
            self._notice(
                f"Training waits while checkpoints are written: a copy of {needed:,} bytes would "
                "take more than half of the free memory",
                copy_bytes=needed,
            )
        return has_room
