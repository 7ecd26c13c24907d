"""Ends of stages as a check finds them, without the stages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.contract.events import CheckpointSaved, Failed, Finished, Metric, StageEvent
from service.contract.failures import Failure, FailureCode
from service.contract.spec import JobSpec
from service.contract.stages import StageRequest, TrainResult
from service.contract.states import Stage
from worker.doctor.check import Context, TorchView
from worker.doctor.jobs import Ended, Jobs

SPEC = {
    "task": "causal-lm",
    "model": {"name_or_path": "/models/tiny"},
    "dataset": {"source": "path", "train": "/data/train.jsonl"},
}
GPU = {"index": 0, "name": "A", "uuid": "0-1", "capability": [9, 0], "memory_bytes": 1 << 34}
Options = dict[str, Any]


def finished(
    folder: Path,
    losses: Sequence[float] = (2.0, 1.5),
    *,
    weights: str = "a" * 64,
    checkpoints: dict[int, str] | None = None,
    **metrics: float,
) -> Ended:
    steps = enumerate(losses, start=1)
    events: list[StageEvent] = [
        Metric(kind="train", step=step, values={"loss": loss}) for step, loss in steps
    ]
    events += [
        CheckpointSaved(step=step, path=path, bytes=1, manifest_sha256="0" * 64)
        for step, path in (checkpoints or {}).items()
    ]
    result = TrainResult(
        output_dir="",
        steps=1,
        epochs=1,
        metrics=metrics,
        baseline={},
        weights_sha256=weights,
        precision="fp32",
    )
    events.append(Finished(result=result.model_dump(mode="json")))
    return Ended(_request(folder), 0, 0.1, events, "")


def failed(folder: Path, code: FailureCode | None = None, log: str = "") -> Ended:
    """`code` None: the stage was killed and reported nothing."""
    events: list[StageEvent] = []
    if code is not None:
        events.append(Failed(failure=Failure.of(code, f"it was {code}")))
    return Ended(_request(folder), -9 if code is None else 1, 0.1, events, log)


def script(monkeypatch: pytest.MonkeyPatch, end: Callable[[Options], Ended]) -> None:
    """Each training ends as `end` says, given the options that the check has set."""

    def train(self: Jobs, body: Any = None, **options: Any) -> Ended:
        return end({"body": body, **options})

    monkeypatch.setattr(Jobs, "train", train)
    monkeypatch.setattr(Jobs, "body", lambda self, task, **options: {"task": task, **options})


def in_turn(*endings: Ended) -> Callable[[Options], Ended]:
    left = iter(endings)
    return lambda _options: next(left)


def cpu(folder: Path) -> Context:
    return Context(scratch=folder)


def gpu(folder: Path, count: int = 1) -> Context:
    """A machine with GPUs, for checks whose trainings are scripted."""
    devices: Any = [GPU] * count
    gpus = [{"uuid": f"GPU-{number}"} for number in range(count)]
    return Context(scratch=folder, gpus=gpus, torch=TorchView(available=True, devices=devices))


def _request(folder: Path) -> StageRequest:
    return StageRequest(
        job_id="doctor-1",
        stage=Stage.TRAIN,
        epoch=1,
        attempt=1,
        spec=JobSpec.model_validate(SPEC),
        workspace=folder,
        attempt_dir=folder,
        cache_dir=folder,
    )
