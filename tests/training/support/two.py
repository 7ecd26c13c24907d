"""Jobs of the train stage on two processes, which are started once for many jobs, because imports
take seconds.

`python -P -m worker.stages.launch_ranks 2 tests.training.support.two <request.json>`; the cases are
in `cases.json` beside the request, which is that of the first one.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor

from service.contract.stage.events import STAGE_EVENT, CheckpointSaved, StageEvent
from service.contract.stage.stages import StageRequest, TrainResult
from tests.stages.support import Forks
from tests.training.support.jobs import Recorder, TinyTask, run
from worker.stages import rank_env
from worker.stages.base import Channel, Stopped, run_stage
from worker.stages.reference import blocks
from worker.tasks import registry
from worker.training import loop
from worker.training.evaluation.evaluator import Evaluator
from worker.training.run import TrainingRun

_CASES = "cases.json"
Gradients = dict[str, torch.Tensor]
NOTHING = TrainResult(
    output_dir="", steps=0, epochs=0.0, metrics={}, baseline={}, weights_sha256="", precision="fp32"
)
"""Of a stage that was stopped."""


@dataclass(frozen=True)
class Case:
    request: StageRequest
    is_tiny: bool = False
    """The tests' own task takes the place of `causal-lm`."""
    keeps_gradients: bool = False
    stops_after: int | None = None
    """Evaluated batches of the second process, which is then asked to stop softly."""
    saves_each_batch: bool = False
    """Of the reference."""


@dataclass(frozen=True)
class Outcome:
    request: StageRequest
    result: TrainResult
    """NOTHING if it was stopped."""
    recorder: Recorder
    gradients: Gradients
    """Of the last step, before clipping, by the model's names."""
    evaluated: list[int]
    """Numbers of the batches that the first process has evaluated, of each evaluation."""
    writers: list[str]
    """Names of the threads that have written its checkpoints, in order."""

    @property
    def losses(self) -> dict[int, float]:
        return self.recorder.train_values("loss")


def run_on_one(case: Case) -> Outcome:
    """In this process."""
    gradients: Gradients = {}
    evaluated: list[int] = []
    writers: list[str] = []
    recorder = Recorder(kill_after=_noting_writers(writers))
    with ExitStack() as stack:
        stack.enter_context(_watching(evaluated, recorder, case.stops_after))
        if case.is_tiny:
            tiny = {"causal-lm": TinyTask()}
            stack.enter_context(mock.patch.dict(registry.REGISTRY, tiny))
        if case.saves_each_batch:
            stack.enter_context(mock.patch.object(blocks, "SECONDS_OF_BLOCK", 0.0))
        if case.keeps_gradients:
            stack.enter_context(_keeping(gradients))
        try:
            result, _ = run(case.request, recorder)
        except Stopped:
            result = NOTHING
    return Outcome(case.request, result, recorder, gradients, evaluated, writers)


def run_on_two(folder: Path, cases: Mapping[str, Case]) -> dict[str, Outcome]:
    """One after the other; a later one may resume what an earlier one has written."""
    described = [
        {
            "request": case.request.model_dump(mode="json"),
            "is_tiny": case.is_tiny,
            "keeps_gradients": case.keeps_gradients,
            "stops_after": case.stops_after,
            "saves_each_batch": case.saves_each_batch,
            "into": str(folder / str(number)),
        }
        for number, case in enumerate(cases.values())
    ]
    (folder / _CASES).write_text(json.dumps(described))
    first, path = next(iter(cases.values())), folder / "request.json"
    path.write_text(first.request.model_dump_json())
    forks = Forks("tests.training.support.two", folder / "hub", ranks=2)
    ended = forks.run(path)
    assert ended.status == 0, ended.log
    return {
        name: _read(folder / str(number), case.request)
        for number, (name, case) in enumerate(cases.items())
    }


@contextmanager
def _keeping(gradients: Gradients) -> Iterator[None]:
    original = loop.forward_backward

    def forward_backward(training: TrainingRun, *arguments: Any) -> loop.StepLoss:
        loss = original(training, *arguments)
        named = training.state.bare_model.named_parameters()
        gradients.update({n: _whole(p.grad) for n, p in named if p.grad is not None})
        return loss

    with mock.patch.object(loop, "forward_backward", forward_backward):
        yield


@contextmanager
def _watching(evaluated: list[int], recorder: Recorder, stops_after: int | None) -> Iterator[None]:
    original = Evaluator._output

    def output(self: Evaluator, batch: Any, number: int, *arguments: Any) -> Any:
        evaluated.append(number)
        if rank_env.number() == 1 and len(evaluated) == stops_after:
            recorder.soft_stop.request()
        return original(self, batch, number, *arguments)

    with mock.patch.object(Evaluator, "_output", output):
        yield


def _noting_writers(writers: list[str]) -> Callable[[StageEvent], bool]:
    """The thread that has written a checkpoint reports it."""

    def note(event: StageEvent) -> bool:
        if isinstance(event, CheckpointSaved):
            writers.append(threading.current_thread().name)
        return False

    return note


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()


def _write(outcome: Outcome, into: Path) -> None:
    into.mkdir()
    (into / "result.json").write_text(outcome.result.model_dump_json())
    (into / "evaluated.json").write_text(json.dumps(outcome.evaluated))
    (into / "writers.json").write_text(json.dumps(outcome.writers))
    lines = [event.model_dump_json() for event in outcome.recorder.events]
    (into / "events").write_text("\n".join(lines))
    torch.save(outcome.gradients, into / "gradients")


def _read(into: Path, request: StageRequest) -> Outcome:
    lines = (into / "events").read_text().splitlines()
    return Outcome(
        request,
        TrainResult.model_validate_json((into / "result.json").read_bytes()),
        Recorder(events=[STAGE_EVENT.validate_json(line) for line in lines]),
        torch.load(into / "gradients"),
        json.loads((into / "evaluated.json").read_bytes()),
        json.loads((into / "writers.json").read_bytes()),
    )


def main(_request: StageRequest, _channel: Channel) -> None:
    torch.set_num_threads(1)
    for case in json.loads(Path(sys.argv[1]).with_name(_CASES).read_bytes()):
        request = StageRequest.model_validate(case["request"])
        options = ("is_tiny", "keeps_gradients", "stops_after", "saves_each_batch")
        outcome = run_on_one(Case(request, **{name: case[name] for name in options}))
        if rank_env.number() == 0:
            _write(outcome, Path(case["into"]))
        else:
            assert outcome.result in (None, NOTHING)


if __name__ == "__main__":
    run_stage(main)
