"""Jobs of the train stage on two processes, which are started once for many jobs, because imports
take seconds.

`python -P -m worker.stages.launch 2 tests.training.two <cases.json>`
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor

from service.contract.events import STAGE_EVENT
from service.contract.stages import StageRequest, TrainResult
from tests.stages.support import Running
from tests.training.support import Recorder, TinyTask, run
from worker.stages import ranks
from worker.tasks import registry
from worker.training import loop

Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    request: StageRequest
    is_tiny: bool = False
    """The tests' own task takes the place of `causal-lm`."""
    keeps_gradients: bool = False


@dataclass(frozen=True)
class Outcome:
    request: StageRequest
    result: TrainResult
    recorder: Recorder
    gradients: Gradients
    """Of the last step, before clipping, by the model's names."""

    @property
    def losses(self) -> dict[int, float]:
        return self.recorder.train_values("loss")


def run_on_one(case: Case) -> Outcome:
    """In this process."""
    gradients: Gradients = {}
    with ExitStack() as stack:
        if case.is_tiny:
            tiny = {"causal-lm": TinyTask()}
            stack.enter_context(mock.patch.dict(registry.REGISTRY, tiny))  # type: ignore[arg-type]
        if case.keeps_gradients:
            stack.enter_context(_keeping(gradients))
        result, recorder = run(case.request)
    return Outcome(case.request, result, recorder, gradients)


def run_on_two(folder: Path, cases: Mapping[str, Case]) -> dict[str, Outcome]:
    """One after the other; a later one may resume what an earlier one has written."""
    described = [
        {
            "request": case.request.model_dump(mode="json"),
            "is_tiny": case.is_tiny,
            "keeps_gradients": case.keeps_gradients,
            "into": str(folder / str(number)),
        }
        for number, case in enumerate(cases.values())
    ]
    path = folder / "cases.json"
    path.write_text(json.dumps(described))
    command = ["-P", "-m", "worker.stages.launch", "2", "tests.training.two", str(path)]
    ended = Running(command, folder / "log", {}).wait()
    assert ended.status == 0, ended.log
    return {
        name: _read(folder / str(number), case.request)
        for number, (name, case) in enumerate(cases.items())
    }


@contextmanager
def _keeping(gradients: Gradients) -> Iterator[None]:
    original = loop._backward

    def backward(training: loop.Training, *arguments: Any) -> torch.Tensor:
        loss = original(training, *arguments)
        named = training.state.bare_model.named_parameters()
        gradients.update({n: _whole(p.grad) for n, p in named if p.grad is not None})
        return loss

    with mock.patch.object(loop, "_backward", backward):
        yield


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()


def _write(outcome: Outcome, into: Path) -> None:
    into.mkdir()
    (into / "result.json").write_text(outcome.result.model_dump_json())
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
    )


def main() -> None:
    torch.set_num_threads(1)
    for case in json.loads(Path(sys.argv[1]).read_bytes()):
        request = StageRequest.model_validate(case["request"])
        outcome = run_on_one(Case(request, case["is_tiny"], case["keeps_gradients"]))
        if ranks.number() == 0:
            _write(outcome, Path(case["into"]))
        else:
            assert outcome.result is None


if __name__ == "__main__":
    main()
