"""A training without torch whose weights are a chain of hashes; started by the real supervisor.

Each step's weights are the sha256 of those before, the learning rate, the seed and the step. So a
training that resumes has the undisturbed sha256 only if it makes every step once, in order, from
the right state. Losses depend on the weights, and so do the decisions of a search.

`training` decides the steps, and after which of them it is evaluated and saved; the metadata's
`stub.seconds` is how long a step takes.
"""

import hashlib
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel

from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import Metric, PhaseChanged, Progress
from service.contract.stage.stages import StageRequest
from service.contract.states import Phase
from tests.support.stages import stage
from worker.stages.base import Channel, run_stage
from worker.storage import atomic_dir

_BEST_RATE: Final = 3e-4
_NOISE: Final = 0.5
"""So much that the order of trials changes from rung to rung, and paused ones are promoted."""


class Step(NamedTuple):
    number: int
    weights: str
    loss: float


def chain(training: TrainingSpec, after: int = 0, weights: str = "") -> Iterator[Step]:
    """The steps of a training that has made `after` of them, and has these weights."""
    for number in range(after + 1, training.max_steps + 1):
        given = f"{weights} {training.learning_rate!r} {training.seed} {number}"
        weights = hashlib.sha256(given.encode()).hexdigest()
        yield Step(number, weights, _loss(training.learning_rate, number, weights))


def _loss(rate: float, step: int, weights: str) -> float:
    off = abs(math.log10(rate) - math.log10(_BEST_RATE))
    return off + 2 / step + _NOISE * int(weights[:8], 16) / 2**32


def main(request: StageRequest, channel: Channel) -> BaseModel:
    training = request.spec.training
    seconds = float(request.spec.metadata["stub.seconds"])
    last = _start(request)
    channel.send(PhaseChanged(phase=Phase.TRAINING))
    for step in chain(training, last.number, last.weights):
        time.sleep(seconds)
        _report(request, channel, step)
        last = step
    result = {
        "steps": last.number,
        "model_step": last.number,
        "metrics": {"eval_loss": last.loss},
        "weights_sha256": last.weights,
        "precision": "fp32",
    }
    return stage.result(request).model_copy(update=result)


def _start(request: StageRequest) -> Step:
    if request.resume_from is None:
        return Step(0, "", math.inf)
    number = int(request.resume_from.name)
    weights = (request.resume_from / "state").read_text()
    return Step(number, weights, _loss(request.spec.training.learning_rate, number, weights))


def _report(request: StageRequest, channel: Channel, step: Step) -> None:
    """As a real training: the step's numbers, the evaluation's, the checkpoint."""
    training = request.spec.training
    channel.send(Progress(step=step.number, of=training.max_steps, loss=step.loss))
    channel.send(Metric(kind="train", step=step.number, values={"loss": step.loss}))
    is_last = step.number == training.max_steps
    if is_last or step.number % int(training.eval_steps or 1) == 0:
        channel.send(Metric(kind="eval", step=step.number, values={"eval_loss": step.loss}))
    if is_last or step.number % int(training.save_steps) == 0:
        folder = request.attempt_dir / "checkpoints" / str(step.number)
        with atomic_dir.writing(folder) as partial:
            (partial / "state").write_text(step.weights)
        stage.send_checkpoint(request, channel, step.number, folder)


def command(_request: StageRequest, request_file: Path) -> list[str]:
    """For the supervisor, instead of the real stages."""
    return [sys.executable, "-P", str(Path(__file__)), str(request_file)]


if __name__ == "__main__":
    run_stage(main)
