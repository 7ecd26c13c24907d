"""Checks training in two processes: the losses of a single one, and failure if one is lost."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil

from service.contract.events import Progress, StageEvent
from service.contract.failures import FailureCode
from service.contract.stages import StageRequest
from worker import failures
from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import Ended, Jobs, replace
from worker.processes.child import Child

_TOLERANCE = 1e-3
_LEARNING_RATE = 1e-3
"""Small enough to keep rounding differences small."""
_REMEDY = "Train with `resources.gpus: 1` on this machine, and send this report."


def data_parallel(context: Context) -> Finding:
    return _against_one(context, "ddp")


def sharded(context: Context) -> Finding:
    return _against_one(context, "fsdp")


def killed(context: Context) -> Finding:
    """A killed process must end the training with `worker_lost`, which is retried."""
    jobs = Jobs.of(context)
    ended = jobs.train(
        on_event=_kill_a_rank, resources=_two(context, "ddp"), max_steps=100_000, logging_steps=1000
    )
    failure = ended.failure or failures.from_exit(ended.status)
    data: dict[str, Any] = {"code": failure.code, "seconds": round(ended.seconds, 1)}
    if ended.finished or failure.code is not FailureCode.WORKER_LOST:
        summary = "a killed process does not end the training with `worker_lost`"
        return failed(summary, reason=ended.ending, remedy=_REMEDY, **data)
    return ok("a killed process ends the training with `worker_lost`", **data)


def nccl_error(context: Context) -> Finding:
    """Two processes on one GPU, which NCCL refuses: must not be reported as `worker_lost`."""
    jobs = Jobs.of(context)
    ended = jobs.train(prelude=_share_a_gpu, resources=_two(context, "ddp"))
    failure = ended.failure
    if failure is None or failure.code is not FailureCode.GPU_USED_TWICE:
        summary = "an NCCL error does not end the job with its own cause"
        return failed(summary, reason=ended.ending, remedy=_REMEDY)
    return ok(f"an NCCL error ends the job with `{failure.code}`", message=failure.message)


def _against_one(context: Context, strategy: str) -> Finding:
    jobs = Jobs.of(context)
    alone = jobs.train(per_device_train_batch_size=4, learning_rate=_LEARNING_RATE)
    both = jobs.train(
        per_device_train_batch_size=2,
        resources=_two(context, strategy),
        learning_rate=_LEARNING_RATE,
    )
    for ended in (alone, both):
        if not ended.finished:
            how = "alone" if ended is alone else f"with {strategy} in two processes"
            return failed(f"a training {how} failed", reason=ended.ending, remedy=_REMEDY)
    data: dict[str, Any] = {"losses": both.losses, "losses_of_one_process": alone.losses}
    if not _near(both, alone):
        reason = f"losses {both.losses}; with one process {alone.losses}"
        return failed(
            f"{strategy} in two processes gives different losses",
            reason=reason,
            remedy=_REMEDY,
            **data,
        )
    return ok(f"{strategy} in two processes gives the same losses as one", **data)


def _near(some: Ended, others: Ended) -> bool:
    pairs = zip(some.losses, others.losses, strict=True)
    return all(abs(one - other) <= _TOLERANCE * abs(other) for one, other in pairs)


def _two(context: Context, strategy: str) -> dict[str, Any]:
    several = len(context.torch.devices) > 1
    where = {"gpus": 2} if several else {"gpus": 0, "num_processes": 2}
    return {**where, "strategy": {"type": strategy}}


def _kill_a_rank(child: Child, event: StageEvent) -> None:
    """Kill the launcher's last child once the training has made a step."""
    if isinstance(event, Progress) and event.step > 0:
        ranks = psutil.Process(child.pid).children()
        if ranks:
            os.kill(ranks[-1].pid, signal.SIGKILL)


def _share_a_gpu(_request: StageRequest) -> None:
    """In the launcher's process: assign the first GPU to all ranks."""
    from worker.stages import rank_env

    plain = rank_env.environment

    def environment(number: int, count: int, address: tuple[str, int], file: Path) -> Any:
        return plain(number, count, address, file) | {"LOCAL_RANK": "0"}

    replace(rank_env, "environment", environment)
