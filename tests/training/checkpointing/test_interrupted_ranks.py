"""A training in two processes that loses one, and is stopped softly, ends as if undisturbed."""

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from service.contract.failures import FailureCode
from service.contract.stage.events import STAGE_EVENT, CheckpointSaved, Failed, StageEvent
from service.contract.stage.stages import TrainResult
from tests.stages.support import Running
from tests.training.support.jobs import Job, Recorder, at_checkpoint
from tests.training.support.two import Case, run_on_two
from worker import failures
from worker.stages.base import EXIT_STOPPED
from worker.storage import atomic_dir

pytestmark = [pytest.mark.long, pytest.mark.heavy]


def start(job: Job, attempt: int, resume_from: Path | None = None) -> Running:
    """As the supervisor does."""
    request = job.request(attempt, resume_from)
    path = request.attempt_dir / "request.json"
    path.write_text(request.model_dump_json())
    stage = ["tests.training.support.tiny_stage", str(path)]
    command = ["-P", "-m", "worker.stages.launch_ranks", "2", *stage]
    return Running(command, job.home / "log", {})


def read_until(running: Running, seen: Callable[[StageEvent], bool]) -> Recorder:
    recorder = Recorder()
    for line in running.events:
        recorder.events.append(STAGE_EVENT.validate_json(line))
        if seen(recorder.events[-1]):
            break
    return recorder


def newest(job: Job, recorder: Recorder) -> Path:
    return job.workspace / str(recorder.of(CheckpointSaved)[-1].path)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("strategy", "steps"),
    # Of a whole service: `make chaos`.
    [("ddp", 54), ("fsdp", 40)],
)
def test_the_job_goes_on_and_ends_with_the_same_weights(
    make_job: Callable[..., Job], tmp_path: Path, strategy: str, steps: int
) -> None:
    each = steps // 9
    options = {"max_steps": steps, "save_steps": each, "per_device_train_batch_size": 2}
    resources = {"gpus": 0, "num_processes": 2, "strategy": strategy}
    undisturbed = make_job(**options, resources=resources)
    (tmp_path / "two").mkdir()
    whole = run_on_two(tmp_path / "two", {"whole": Case(undisturbed.request(), True)})["whole"]

    job = make_job(**options, resources=resources)
    running = start(job, 1)
    first = read_until(running, at_checkpoint(2 * each))
    victim = psutil.Process(running.process.pid).children()[1]
    victim.send_signal(signal.SIGKILL)
    ended = running.wait()
    assert not [event for event in ended.events if isinstance(event, Failed)]
    assert failures.from_exit(ended.status).code is FailureCode.WORKER_LOST

    first.events += ended.events
    killed_at = newest(job, first)
    running = start(job, 2, killed_at)
    second = read_until(running, at_checkpoint(int(killed_at.name) + 2 * each))
    running.process.send_signal(signal.SIGUSR1)
    ended = running.wait()
    assert ended.status == EXIT_STOPPED
    assert isinstance(ended.events[-1], CheckpointSaved)
    second.events += ended.events
    stopped_at = newest(job, second)
    assert atomic_dir.verify(stopped_at)
    assert int(killed_at.name) + 2 * each <= int(stopped_at.name) < steps

    ended = start(job, 3, stopped_at).wait()
    result = TrainResult.model_validate(ended.result)
    assert result.weights_sha256 == whole.result.weights_sha256
    last = Recorder(events=ended.events)
    left = range(int(stopped_at.name) + 1, steps + 1)
    assert last.train_values("loss") == {step: whole.losses[step] for step in left}
    between = {s: v for s, v in second.train_values("loss").items() if s > int(killed_at.name)}
    assert between == {step: whole.losses[step] for step in between}
