"""A stage without torch, started by the real supervisor; `metadata` directs it.

`stub.<stage>`: finish (default), fail:<code>, segfault, kill, exit:<status>, hang, spin, deaf
(ignores SIGTERM), model:<parameters> (fails if the disk has no room for it), bomb:<function of
bombs.py>, chatter (invalid lines, then finish), fork (leaves a grandchild, then finishes), patient
(until a soft stop; then one more checkpoint), stubborn (deaf to soft stops).
`stub.attempts`: misbehave only in that many first attempts of the stage.
`stub.steps`, `stub.seconds`: so many steps of training (3), each after so long a sleep (0).
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

from pydantic import BaseModel

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import (
    ArtifactWritten,
    CheckpointSaved,
    Metric,
    Notice,
    PhaseChanged,
    Progress,
)
from service.contract.stage.stages import (
    EVENT_FD_VARIABLE,
    PrepareResult,
    PublishResult,
    StageRequest,
    TrainResult,
)
from service.contract.states import Phase, Stage
from service.system import private_file
from worker.base_model import size
from worker.base_model.size import Size
from worker.stages.base import Channel, run_stage
from worker.storage import atomic_dir


def main(request: StageRequest, channel: Channel) -> BaseModel:
    sys.stdout.write(f"stub {request.stage} epoch {request.epoch}\n")
    gpus = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    (request.attempt_dir / "gpus.json").write_text(json.dumps(gpus))
    write_environment(request)
    if request.stage is Stage.TRAIN:
        _train(request, channel)
    behaviour = request.spec.metadata.get(f"stub.{request.stage}", "finish")
    if behaviour == "spin":
        while True:
            pass
    if behaviour.startswith("bomb:"):
        runpy.run_path(str(Path(__file__).with_name("bombs.py")))[behaviour[len("bomb:") :]]()
    if behaviour.startswith("model:"):
        model = Size(int(behaviour[len("model:") :]), 0)
        size.require_fits_disk(model, request.spec, request.workspace)
    if request.attempt <= int(request.spec.metadata.get("stub.attempts", "1000")):
        _behave(behaviour, request)
        _await_soft_stop(behaviour, request, channel)
    return result(request)


def write_environment(request: StageRequest) -> None:
    """Tests wait for this file and then read it: it appears with all that it holds."""
    names = "\n".join(sorted(os.environ))
    private_file.write(request.attempt_dir / "environment", names)


def _train(request: StageRequest, channel: Channel) -> None:
    first = 0 if request.resume_from is None else int(request.resume_from.name)
    seconds = float(request.spec.metadata.get("stub.seconds", "0"))
    channel.send(PhaseChanged(phase=Phase.TRAINING))
    for step in range(first + 1, _steps(request) + 1):
        time.sleep(seconds)
        _step(request, channel, step)
    path = request.attempt_dir / "predictions.json"
    path.write_text("{}")
    relative = str(path.relative_to(request.workspace))
    channel.send(ArtifactWritten(name="predictions.json", path=relative, bytes=2, sha256="0" * 64))
    channel.send(Notice(message="trained", data={"from": first}))


def _steps(request: StageRequest) -> int:
    return int(request.spec.metadata.get("stub.steps", "3"))


def _step(request: StageRequest, channel: Channel, step: int) -> None:
    """An optimizer step and its checkpoint."""
    channel.send(Progress(step=step, of=_steps(request), loss=1 / step))
    channel.send(Metric(kind="train", step=step, values={"loss": 1 / step}))
    folder = request.attempt_dir / "checkpoints" / str(step)
    with atomic_dir.writing(folder) as partial:
        (partial / "state").write_text(f"{step}")
    send_checkpoint(request, channel, step, folder)


def send_checkpoint(request: StageRequest, channel: Channel, step: int, folder: Path) -> None:
    channel.send(
        CheckpointSaved(
            step=step,
            path=str(folder.relative_to(request.workspace)),
            bytes=atomic_dir.total_bytes(folder),
            manifest_sha256=atomic_dir.manifest_sha256(folder),
        )
    )


def _pipe() -> int:
    return int(os.environ[EVENT_FD_VARIABLE])


def _await_soft_stop(behaviour: str, request: StageRequest, channel: Channel) -> None:
    if behaviour not in ("patient", "stubborn"):
        return
    channel.soft_stop.postpone()
    (request.attempt_dir / "ready").touch()
    while not channel.soft_stop():
        time.sleep(0.01)
    (request.attempt_dir / "asked").touch()
    while behaviour == "stubborn":
        time.sleep(0.01)
    _step(request, channel, _steps(request) + 1)
    channel.soft_stop.stop_if_requested()


def _behave(behaviour: str, request: StageRequest) -> None:
    kind, _, argument = behaviour.partition(":")
    match kind:
        case "fail":
            raise StageError(FailureCode(argument), "the stub was asked to fail")
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "oom":  # as when the kernel counts a kill, then kills
            Path(argument).write_text("nr_free_pages 1\noom_kill 5\n")
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(int(argument))
        case "hang":
            time.sleep(600)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        case "chatter":
            os.write(_pipe(), b'not json\n{"type": "unknown"}\n')
        case "fork":
            # Found by its argument: in a process namespace its pid is another one.
            seconds = f"600.{time.time_ns()}"
            subprocess.Popen(["sleep", seconds], pass_fds=(_pipe(),))
            (request.attempt_dir / "grandchild").write_text(seconds)


def result(request: StageRequest) -> BaseModel:
    prepared, model = (request.cache_dir / place for place in ("prepared/entry", "hub/model"))
    if request.stage is Stage.PREPARE:
        for folder in (prepared, model):
            folder.mkdir(parents=True, exist_ok=True)
    results: dict[Stage, BaseModel] = {
        Stage.PREPARE: PrepareResult(
            prepared_dir=prepared,
            model_dir=model,
            tokenizer_dir=model,
            model_revision=None,
            dataset_revision=None,
            data_fingerprint="f" * 64,
            splits={"train": {"examples": 1, "features": 1}},
        ),
        Stage.TRAIN: TrainResult(
            output_dir="output",
            steps=_steps(request),
            epochs=1.0,
            metrics={"f1": 50.0},
            baseline={"f1": float("nan")},
            weights_sha256="0" * 64,
            precision="fp32",
        ),
        Stage.PUBLISH: PublishResult(),
    }
    return results[request.stage]


def command(request: StageRequest, request_file: Path) -> list[str]:
    """For the supervisor, instead of the real stages."""
    # -P: the `worker.py` of this folder would be imported instead of the package.
    return [sys.executable, "-P", str(Path(__file__)), str(request_file)]


if __name__ == "__main__":
    run_stage(main)
