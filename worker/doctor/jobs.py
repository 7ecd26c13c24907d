"""Runs the stages of a user's job for a check, each in a process forked from the check's own.

Imports take most of the time of a short job, so the check's process imports the stages' libraries
once, as a worker's fork server does. It must never start CUDA: a forked process could not use it.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from traceback import print_exc
from typing import Any, Final, Self

from service.contract.events import CheckpointSaved, Failed, Finished, Metric, Notice, StageEvent
from service.contract.failures import Failure
from service.contract.spec import JobSpec
from service.contract.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Stage
from service.prctl import die_with_parent
from service.settings import Settings
from worker.doctor import tiny
from worker.doctor.check import Context
from worker.processes import stage_command, stage_environment
from worker.processes.child import Child
from worker.processes.fork_client import FORKABLE, IMPORTS, IMPORTS_WITH_GPU
from worker.processes.fork_protocol import ForkRequest
from worker.processes.spawn import Launch

EventCallback = Callable[[Child, StageEvent], None]
"""Called with each event of a running stage."""
Prelude = Callable[[StageRequest], None]
"""Called in the stage's process before the stage starts, to inject a fault or count something."""

_POLL_SECONDS: Final = 0.05
_LOG_TAIL_CHARACTERS: Final = 1500


class StageFailedError(Exception):
    """A stage that a check needs did not finish; the message says how it ended."""


@dataclass(frozen=True)
class Ended:
    """The events of a stage, and how it ended."""

    request: StageRequest
    status: int
    seconds: float
    events: list[StageEvent]
    log: str

    @property
    def failure(self) -> Failure | None:
        last = self.events[-1] if self.events else None
        return last.failure if isinstance(last, Failed) else None

    @property
    def ending(self) -> str:
        """How the stage ended, as text for a finding."""
        if self.finished:
            return "the stage finished"
        if self.failure is not None:
            return f"the stage ended with {self.failure.code}: {self.failure.message}"
        tail = self.log[-_LOG_TAIL_CHARACTERS:].strip()
        return f"the stage ended with status {self.status} and without a result. Its log: {tail}"

    @property
    def finished(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Finished)

    @property
    def result(self) -> TrainResult:
        """Raises StageFailedError when the stage did not finish."""
        last = self.events[-1] if self.events else None
        if not isinstance(last, Finished):
            raise StageFailedError(self.ending)
        return TrainResult.model_validate(last.result)

    @property
    def losses(self) -> list[float]:
        """Training loss at each logged step. Raises StageFailedError as `result` does."""
        assert self.result
        return list(self.logged("loss").values())

    def logged(self, name: str) -> dict[int, float]:
        """Step → value of the training metric `name`."""
        return {e.step: e.values[name] for e in self.of(Metric) if e.kind == "train"}

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step → folder."""
        return {e.step: self.request.workspace / e.path for e in self.of(CheckpointSaved)}

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.of(Notice)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


# Checks compare numbers between runs: by default a job saves and evaluates nothing.
_TRAINING: Final[dict[str, Any]] = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "eval_on_start": False,
    "precision": "fp32",
}


@dataclass
class Jobs:
    """Tiny jobs in a check's scratch folder; each task's data is prepared once."""

    folder: Path
    device: str
    """"cpu" or "cuda"."""
    gpus: Sequence[str] = ()
    """UUIDs of the GPUs that jobs may use, in the order in which they are assigned."""
    _prepared: dict[str, PrepareResult] = field(default_factory=dict)
    _runs: int = 0

    @classmethod
    def of(cls, context: Context) -> Self:
        uuids = [str(gpu["uuid"]) for gpu in context.gpus]
        return cls(context.scratch, context.device, uuids if context.device == "cuda" else ())

    def train(
        self,
        body: Mapping[str, Any] | None = None,
        *,
        prelude: Prelude | None = None,
        on_event: EventCallback | None = None,
        resume_from: Path | None = None,
        resources: Mapping[str, Any] | None = None,
        gpus: Sequence[str] | None = None,
        sections: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> Ended:
        """Run the `train` stage of a job: `body` comes from `tiny.job` (default: causal-lm),
        `training` are its options, `sections` the other sections of its spec, `gpus` the visible
        GPUs (default: as many as `resources` requests).

        Raises StageFailedError if the data cannot be prepared.
        """
        body = dict(body or self.body("causal-lm")) | dict(sections or {})
        prepared = self._prepare(body)
        body |= {"training": {**_TRAINING, **training}, "resources": self._resources(resources)}
        visible = self.gpus[: body["resources"]["gpus"]] if gpus is None else gpus
        fields = {"prepared": prepared, "resume_from": resume_from, "gpus": list(visible)}
        request = self._request(Stage.TRAIN, body, fields)
        return self.run(request, prelude=prelude, on_event=on_event)

    def body(self, task: str, **options: Any) -> dict[str, Any]:
        import_libraries(libraries(self.device))
        return tiny.job(task, self.folder / "files", **options)

    def run(
        self,
        request: StageRequest,
        *,
        prelude: Prelude | None = None,
        on_event: EventCallback | None = None,
    ) -> Ended:
        """Run the requested stage to its end."""
        import_libraries(libraries(self.device))
        file = request.attempt_dir / "request.json"
        file.write_text(request.model_dump_json(indent=1))
        command = stage_command.stage_command(request, file)
        settings = Settings(home=self.folder, malloc="system")
        variables = stage_environment.stage_environment(settings, request.stage, request.gpus or ())
        log = request.attempt_dir / "job.log"
        start = partial(forked, before=partial(prelude, request) if prelude else None)
        begin, events = time.monotonic(), []
        with Child(command, variables, request.attempt_dir, log, start=start) as child:
            for event in _events(child):
                events.append(event)
                if on_event is not None:
                    on_event(child, event)
            status = child.reap()
        seconds = time.monotonic() - begin
        return Ended(request, status, seconds, events, log.read_text(errors="replace"))

    def _prepare(self, body: Mapping[str, Any]) -> PrepareResult:
        key = json.dumps(body, sort_keys=True)
        if key not in self._prepared:
            ended = self.run(self._request(Stage.PREPARE, body, {"gpus": []}))
            last = ended.events[-1] if ended.events else None
            if not isinstance(last, Finished):
                raise StageFailedError(f"The tiny job's data could not be prepared: {ended.ending}")
            self._prepared[key] = PrepareResult.model_validate(last.result)
        return self._prepared[key]

    def _resources(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        return dict(given) if given else {"gpus": 0 if self.device == "cpu" else 1}

    def _request(
        self, stage: Stage, body: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> StageRequest:
        self._runs += 1
        workspace = self.folder / "jobs" / f"{self._runs}"
        attempt_dir = workspace / "attempts" / "1"
        attempt_dir.mkdir(parents=True)
        return StageRequest(
            job_id=f"doctor-{self._runs}",
            stage=stage,
            epoch=1,
            attempt=1,
            spec=JobSpec.model_validate(body),
            workspace=workspace,
            attempt_dir=attempt_dir,
            cache_dir=self.folder / "cache",
            data_roots=[self.folder],
            model_roots=[self.folder],
            **fields,
        )


def has_bf16_gpu(context: Context) -> bool:
    """Whether the first GPU has compute capability 8 (Ampere) or newer."""
    if context.device != "cuda":
        return False
    capability = context.torch.devices[0].get("capability")
    return isinstance(capability, list) and int(str(capability[0])) >= 8


def libraries(device: str) -> list[str]:
    """The modules that a worker's fork server imports, except those needed only to publish."""
    imports = IMPORTS if device == "cpu" else IMPORTS_WITH_GPU
    return [module for module in imports if module != "mlflow" and "publish" not in module]


def import_libraries(modules: Sequence[str]) -> None:
    """Import modules for the processes forked later, without starting threads or CUDA."""
    before = dict(os.environ)
    os.environ |= FORKABLE
    for module in modules:
        import_module(module)
    os.environ.clear()
    os.environ |= before
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # a thread pool would not survive the fork


def replace(module: Any, name: str, value: Any) -> None:
    """In a prelude: replace an attribute of `module` in the stage's process."""
    setattr(module, name, value)


def forked(launch: Launch, *, before: Callable[[], None] | None = None) -> "_Forked":
    """Like `spawn.new_interpreter`, but forks this process with all its imports."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return _Forked(pid)
    with _exit_on_error():
        os.setsid()
        die_with_parent(parent)
        _run_stage(launch, before)
    os._exit(1)


def _run_stage(launch: Launch, before: Callable[[], None] | None) -> None:
    from threadpoolctl import ThreadpoolController

    from worker.stages import fork_server

    request = ForkRequest(
        command=launch.command, environment=dict(launch.environment), folder=str(launch.folder)
    )
    fork_server.take_over(request, launch.output, launch.events)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if before is not None:
        before()
    fork_server.run(request, ThreadpoolController())


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """End the forked process on an exception: it must not return into its parent's code."""
    try:
        yield
    except BaseException:
        print_exc()
        os._exit(1)


class _Forked:
    """A child of this process (`worker.processes.spawn.Process`)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _events(child: Child) -> Iterator[StageEvent]:
    while not (child.has_exited() or child.at_end):
        yield from child.read(_POLL_SECONDS)
    while not child.at_end and (rest := child.read(_POLL_SECONDS)):
        yield from rest
