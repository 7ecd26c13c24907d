"""A job of two processes whose worker is killed and which is paused, through the whole service."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from chaos.pace import Pace
from tests.e2e.jobs import job_body, losses, training
from tests.e2e.stack import Stack
from tests.support.processes import is_alive
from tests.support.services import wait_until

_STEPS = 80
# A checkpoint of each step, on disk before the next step begins: `Pace` sees every step, and the
# training cannot be over before it is held.
_EACH_STEP = {"save_steps": 1, "async_save": False}
pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


def _ranks(stack: Stack) -> list[psutil.Process]:
    family = stack.parts["worker"].family()
    return [process for process in family if "worker.stages.train" in process.cmdline()[3:4]]


def _logged(stack: Stack, job_id: str) -> int:
    """The latest step with a loss: each is sent at once, while the progress is sent four times a
    second, and may be older than the step at which the training is held."""
    return max((step for step, _loss in losses(stack, job_id)), default=0)


@pytest.mark.heavy  # the same checkpoints, without a stack: tests/training/distributed
@pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True)
def test_it_goes_on_from_its_checkpoints(
    stack: Stack, tiny_model: Path, squad: dict[str, Path]
) -> None:
    options = training(max_steps=_STEPS, per_device_train_batch_size=4, use_cpu=False, **_EACH_STEP)
    body: dict[str, Any] = job_body(stack, tiny_model, squad, training=options)
    body["resources"] = {"gpus": 0, "num_processes": 2}
    job_id = stack.submit(body)
    workspace = stack.home / "jobs" / job_id
    with Pace(stack.parts["worker"], workspace, limit=10):
        wait_until(lambda: _logged(stack, job_id) >= 8, 180, "the first steps")
        family = stack.parts["worker"].family()
        assert len(_ranks(stack)) == 2
        stack.parts["worker"].kill()  # only the outermost: the rest must die with it
    wait_until(lambda: not any(is_alive(process) for process in family), 10, "their end")
    stack.start_worker()
    with Pace(stack.parts["worker"], workspace, limit=20):
        wait_until(lambda: _logged(stack, job_id) >= 14, 180, "the steps after the kill")
        before = stack.parts["worker"].stops()
        assert stack.http.post(f"/v1/jobs/{job_id}/pause", json={}).is_success
        wait_until(lambda: stack.parts["worker"].stops() > before, 60, "the stop")
    paused = stack.finish(job_id, "paused", seconds=60)
    assert 14 <= paused["progress"]["step"] < _STEPS
    assert not _ranks(stack)
    assert stack.http.post(f"/v1/jobs/{job_id}/resume", json={}).is_success
    assert stack.finish(job_id)["result"]["steps"] == _STEPS

    assert [step for step, _loss in losses(stack, job_id)] == list(range(1, _STEPS + 1))
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    first, second = (event["data"]["step"] for event in events if event["type"] == "resumed")
    assert 5 <= first < second == paused["progress"]["step"]
