"""A real `python -m worker` on two simulated GPUs; only NVML and the stages are stubs."""

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from chaos.checks.checker import is_free
from service.jobs.commands import cancel
from service.store.scope import EVERYTHING
from tests.support.processes import is_alive
from tests.support.servers import services
from tests.support.store.job_rows import get, history_of
from tests.support.warm_processes import Process
from tests.support.workers.stack import SECONDS, Stack, descendants, pool_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize(("database_url", "broker_url"), [("sqlite", "valkey")], indirect=True),
]
HANGS: dict[str, Any] = {"metadata": {"stub.train": "hang"}}


@pytest.fixture
def worker(stack: Stack) -> Process:
    """For trainings; another worker runs the stages on the CPU."""
    stack.start_worker("--queues", "cpu", "--name", "cpu")
    return stack.start_worker(
        "--queues", "gpu", "--name", "gpu", module="tests.support.workers.gpu_worker"
    )


def training(stack: Stack, job_id: str) -> Path:
    """Wait until the job trains, without the reconciler; its attempt's folder."""
    folder = stack.settings.workspace(job_id) / "attempts" / "2"
    try:
        services.wait_until((folder / "environment").exists, SECONDS, "the training")
    except TimeoutError:
        pytest.fail(f"{get(stack.database, job_id).state}\n{stack.log.read_text()[-6000:]}")
    return folder


def wait_prepared(stack: Stack, job_id: str) -> None:
    services.wait_until(lambda: get(stack.database, job_id).stage == "train", SECONDS, "`prepare`")


def gpus_of(stack: Stack, job_id: str) -> list[str]:
    started = [
        event for event in history_of(stack.database, job_id) if event.type == "stage_started"
    ]
    gpus: list[str] = started[-1].data["gpus"]
    return gpus


def seen_by(folder: Path) -> dict[str, str]:
    """What the stage of this attempt has in its environment about GPUs."""
    found: dict[str, str] = json.loads((folder / "gpus.json").read_text())
    return found


def stage_of(worker: Process, folder: Path) -> psutil.Process:
    [stage] = [
        process
        for process in descendants(worker)
        if str(folder / "request.json") in process.cmdline()
    ]
    return stage


def test_each_training_has_its_gpus_alone_and_a_large_one_gets_its_turn(
    stack: Stack, worker: Process
) -> None:
    small = [stack.submit(**HANGS) for _ in range(2)]
    folders = [training(stack, job_id) for job_id in small]
    assert sorted(gpus_of(stack, job_id) for job_id in small) == [["GPU-a"], ["GPU-b"]]
    for job_id, folder in zip(small, folders, strict=True):
        [gpu] = gpus_of(stack, job_id)
        assert seen_by(folder) == {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert get(stack.database, small[0]).worker_id == get(stack.database, small[1]).worker_id
    large = stack.submit(resources={"gpus": 2}, **HANGS)
    wait_prepared(stack, large)
    later = stack.submit()
    wait_prepared(stack, later)
    for job_id in small:
        cancel(stack.database, stack.dispatcher, EVERYTHING, job_id)
    folder = training(stack, large)
    assert gpus_of(stack, large) == ["GPU-a", "GPU-b"]
    assert seen_by(folder)["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert get(stack.database, later).state == "queued"
    cancel(stack.database, stack.dispatcher, EVERYTHING, large)
    services.wait_until(
        lambda: get(stack.database, later).state == "succeeded", SECONDS, "the last job"
    )


@pytest.mark.heavy
def test_a_killed_process_leaves_its_gpu_to_the_next_job(stack: Stack, worker: Process) -> None:
    first, second = [stack.submit(**HANGS) for _ in range(2)]
    folder = training(stack, first)
    training(stack, second)
    stage = stage_of(worker, folder)
    [gpu], [other] = gpus_of(stack, first), gpus_of(stack, second)
    next_one = stack.submit(**HANGS)
    wait_prepared(stack, next_one)
    above = stage.parents()  # the sandbox's process is between them
    [supervisor] = [process for process in pool_of(worker) if process in above]
    supervisor.send_signal(signal.SIGKILL)
    training(stack, next_one)
    assert gpus_of(stack, next_one) == [gpu]
    assert not is_alive(stage)
    assert gpus_of(stack, second) == [other]
    worker.terminate()
    worker.wait(SECONDS)
    locks = stack.settings.devices_dir
    assert sorted(path.name for path in locks.glob("GPU-*")) == [
        "GPU-a.lock",
        "GPU-b.lock",
    ]
    for path in locks.iterdir():
        services.wait_until(lambda path=path: is_free(path), SECONDS, f"{path.name}")


@pytest.mark.heavy
def test_a_worker_that_serves_all_leaves_a_process_to_the_cpu(stack: Stack) -> None:
    worker = stack.start_worker("--name", "all", module="tests.support.workers.gpu_worker")
    large = stack.submit(resources={"gpus": 2}, **HANGS)
    training(stack, large)
    # One process waits for the GPUs of the first of these; their `prepare` needs another.
    small = [stack.submit(**HANGS) for _ in range(3)]
    for job_id in small:
        wait_prepared(stack, job_id)
    on_cpu = stack.submit(resources={"gpus": 0})
    services.wait_until(
        lambda: get(stack.database, on_cpu).state == "succeeded", SECONDS, "the job on the CPU"
    )
    cancel(stack.database, stack.dispatcher, EVERYTHING, large)

    def started() -> list[str]:
        return [job_id for job_id in small if get(stack.database, job_id).state == "running"]

    services.wait_until(lambda: len(started()) == 2, SECONDS, "the next trainings")
    assert sorted(gpus_of(stack, job_id) for job_id in started()) == [["GPU-a"], ["GPU-b"]]
    [row] = stack.workers()
    assert row.queues == ["cpu", "gpu", "gpu.2"]
    assert len(pool_of(worker)) == 4
