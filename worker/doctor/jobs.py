"""Runs the stages of tiny jobs, as a worker runs those of users' jobs."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from service.contract.spec.spec import JobSpec
from service.contract.stage.events import (
    CheckpointSaved,
    Failed,
    Finished,
    Metric,
    Notice,
    StageEvent,
)
from service.contract.stage.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Stage
from service.settings import Settings
from service.system import own_packages
from worker.doctor import isolated, tiny
from worker.doctor.check import Context
from worker.processes import fork_client, spawn, stage_command, stage_environment
from worker.processes.child import Child

_TINY: Final = "worker.doctor.tiny"
_POLL_SECONDS: Final = 0.05
_LOG_TAIL_CHARACTERS: Final = 1500
# Checks compare numbers between runs: by default a job saves and evaluates nothing on the way.
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


class StageFailedError(Exception):
    """A stage that a check needs did not finish; the message says how it ended."""


@dataclass(frozen=True)
class FinishedStage:
    """The events of a stage that finished."""

    workspace: Path
    events: list[StageEvent]
    result: dict[str, Any]

    @property
    def trained(self) -> TrainResult:
        return TrainResult.model_validate(self.result)

    @property
    def losses(self) -> list[float]:
        """Training loss at each logged step."""
        metrics = [event for event in self.events if isinstance(event, Metric)]
        return [event.values["loss"] for event in metrics if event.kind == "train"]

    @property
    def evaluation(self) -> dict[str, float]:
        """The metrics of the last evaluation, without how fast it was."""
        speeds = ("_runtime", "_per_second")
        metrics = self.trained.metrics.items()
        return {n: v for n, v in metrics if n.startswith("eval_") and not n.endswith(speeds)}

    def checkpoint(self, step: int) -> Path:
        saved = [event for event in self.events if isinstance(event, CheckpointSaved)]
        return next(self.workspace / event.path for event in saved if event.step == step)

    @property
    def notices(self) -> list[Notice]:
        return [event for event in self.events if isinstance(event, Notice)]

    @property
    def model(self) -> Path:
        return self.workspace / str(self.trained.output_dir)


@dataclass
class Jobs:
    """Tiny jobs in a folder; equal data is prepared once. Stages are forked as a worker forks them.

    `deadline`: `time.monotonic` when the check at hand must have ended; its stage is killed then.
    """

    folder: Path
    context: Context
    deadline: float = float("inf")
    _prepared: dict[str, PrepareResult] = field(default_factory=dict)
    _runs: int = 0

    def __post_init__(self) -> None:
        self._settings = Settings(home=self.folder, malloc="system")
        gpus: Any = self.context.gpus if self.context.device == "cuda" else []
        self._forks = fork_client.make(self._settings, gpus, also=(_TINY,))
        self._gpus = [str(gpu["uuid"]) for gpu in gpus]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._forks is not None:
            self._forks.close()

    def train(
        self, body: Mapping[str, Any], *, resume_from: Path | None = None, **training: Any
    ) -> FinishedStage:
        """Prepare the data and run the `train` stage of a job, which is any but its `training`, on
        one GPU or on the CPU, unless its `resources` say otherwise.

        Raises StageFailedError if a stage does not finish.
        """
        key = json.dumps(body, sort_keys=True)
        if key not in self._prepared:
            ended = self._run(Stage.PREPARE, body)
            self._prepared[key] = PrepareResult.model_validate(ended.result)
        one = {"gpus": 1 if self._gpus else 0}
        job = {"resources": one, **body, "training": {**_TRAINING, **training}}
        gpus = self._gpus[: job["resources"]["gpus"]]
        return self._run(
            Stage.TRAIN, job, prepared=self._prepared[key], resume_from=resume_from, gpus=gpus
        )

    def body(
        self, task: str, splits: Sequence[str] = ("train",), **parameters: Any
    ) -> dict[str, Any]:
        """The task, model and dataset of a spec; its files are written at the first call.

        Raises StageFailedError if they cannot be.
        """
        return tiny.job(task, self._files, splits, **parameters)

    @cached_property
    def _files(self) -> Path:
        """Written by a process like a stage's, because torch writes them: a crash there ends the
        check, and not the report."""
        request = self._request(Stage.PREPARE, tiny.job("reward", self.folder, ("train",)), {})
        file = _written(request)
        command = own_packages.python(_TINY, str(file))
        return self._end_of(request, command, "process that writes tiny models").workspace

    def _run(self, stage: Stage, body: Mapping[str, Any], **fields: Any) -> FinishedStage:
        request = self._request(stage, body, fields)
        command = stage_command.stage_command(request, _written(request))
        return self._end_of(request, command, f"stage `{stage}`")

    def _end_of(self, request: StageRequest, command: list[str], name: str) -> FinishedStage:
        folder = request.attempt_dir
        log = folder / "job.log"
        variables = stage_environment.stage_environment(self._settings, request.stage, request.gpus)
        start = self._forks.start if self._forks is not None else spawn.new_interpreter
        with Child(command, variables, folder, log, start=start) as child:
            events = list(self._events(child))
            status = None if time.monotonic() > self.deadline else child.reap()
        last = events[-1] if events else None
        if isinstance(last, Finished):
            return FinishedStage(request.workspace, events, last.result or {})
        if isinstance(last, Failed):
            message = f"ended with {last.failure.code}: {last.failure.message}"
        else:
            tail = log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:].strip()
            message = f"{isolated.ending(status)} and without a result. Its log: {tail}"
        raise StageFailedError(f"the {name} {message}")

    def _events(self, child: Child) -> Iterator[StageEvent]:
        while not (child.has_exited() or child.at_end) and time.monotonic() < self.deadline:
            yield from child.read(_POLL_SECONDS)
        in_time = time.monotonic() < self.deadline  # else one that keeps reporting would go on
        while in_time and not child.at_end and (rest := child.read(_POLL_SECONDS)):
            yield from rest

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


def _written(request: StageRequest) -> Path:
    file = request.attempt_dir / "request.json"
    file.write_text(request.model_dump_json(indent=1))
    return file
