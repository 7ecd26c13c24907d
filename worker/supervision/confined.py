"""A process that works with a user's files: confined, limited, watched, and ended in one way."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from service.contract.failures import Failure
from service.contract.stage.events import StageEvent
from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from worker import failures
from worker.processes import spawn
from worker.processes.child import Child
from worker.processes.spawn import Start
from worker.processes.stage_environment import stage_environment, stage_secrets
from worker.sandbox.view import View
from worker.supervision import stage_views
from worker.supervision.limits.resource_watch import ResourceWatch
from worker.supervision.limits.stage_group import stage_group
from worker.supervision.limits.stage_limits import StageLimits
from worker.supervision.limits.written_files import WrittenFiles

POLL_SECONDS: Final = 0.25
_TAIL_SECONDS: Final = 1.0


class Confined:
    def __init__(self, child: Child, watch: ResourceWatch, watching: ExitStack) -> None:
        self.child = child
        self._watch = watch
        self._watching = watching
        self.status: int | None = None
        """How it has exited; None before `reap`."""
        self._was_out_of_memory = False

    @property
    def breach(self) -> Failure | None:
        """Which limit it has exceeded, if any."""
        return self._watch.breach

    def follow(
        self,
        take: Callable[[list[StageEvent]], None],
        supervise: Callable[[], None],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """Pass its events to `take` until it has ended; before that call `supervise` regularly,
        which may stop it. Events wait in the pipe while there is no room."""
        child = self.child
        while not child.has_exited():
            take(child.read(POLL_SECONDS) if has_room() else [])
            if child.at_end:
                time.sleep(0.02)  # the process has closed its pipe and is about to exit
            supervise()
        child.kill()  # its descendants may still hold the pipe
        tail = time.monotonic() + _TAIL_SECONDS
        while not child.at_end and time.monotonic() < tail:
            take(child.read(POLL_SECONDS))

    def reap(self) -> None:
        """End the watch, then what is left of the process: a reaped pid may be another's."""
        self._watching.close()
        self.status = self.child.reap()
        self._was_out_of_memory = self.child.oom_killed()

    def why_ended(self) -> Failure:
        """The reason of a process that has reported none; after `reap`."""
        assert self.status is not None
        return self.breach or failures.from_exit(self.status, oom_killed=self._was_out_of_memory)


@contextmanager
def confined(
    settings: Settings,
    request: StageRequest,
    private: Path,
    command: list[str],
    *,
    stage: Stage | None = None,
    view: Callable[[Mapping[str, str]], View] | None = None,
    log_file: Path | None = None,
    start: Start = spawn.new_interpreter,
    stdin: int = subprocess.DEVNULL,
    locks: tuple[int, ...] = (),
    nice: int = 0,
    goes_first: bool = False,
) -> Iterator[Confined]:
    """Start `command` for `request`; when the context ends, all that it has started has ended.

    `settings` have the Hub token that the process may use, `private` is its folder for temporary
    files. `stage`: publish for a push during the training whose request it is given; it has no GPU
    and writes nothing into the attempt. `view`: environment → what the process may see, if that is
    not what the stage may. `goes_first`: when the machine's memory runs out, it ends before others.

    Must be entered on the main thread. Raises OSError.
    """
    stage = stage or request.stage
    is_beside = stage is not request.stage
    folder = private if is_beside else request.attempt_dir
    gpus = () if is_beside else request.gpus or ()
    environment = stage_environment(settings, stage, gpus, private, request.project_id)
    if view is None:
        shown = stage_views.of_stage(settings, request, environment, private=private, stage=stage)
    else:
        shown = view(environment)
    limits = StageLimits.from_settings(settings, folder)
    with (
        stage_group(limits) as group,
        Child(
            command,
            environment,
            folder,
            log_file or request.workspace / "job.log",
            start=start,
            stdin=stdin,
            locks=locks,
            secrets=stage_secrets(settings, stage),
            limits=limits.of_kernel(),
            view=shown,
            group=group.folder,
            nice=nice,
        ) as child,
        ExitStack() as watching,  # apart, because it must end before the process is reaped
    ):
        folders = sorted({folder, private})
        written = WrittenFiles(folders, limits, fills_caches=stage is Stage.PREPARE)
        # What this process has adopted may be the training's.
        watch = ResourceWatch(
            child.pid, limits, written, group, adopts=not is_beside, goes_first=goes_first
        )
        watching.enter_context(watch)
        yield Confined(child, watch, watching)
