"""Out of memory, forced by a limit on the stage's process: the job ends with that cause, or halves
its batches where it may."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from service.contract.failures import FailureCode
from service.contract.stages import StageRequest
from worker.doctor.check import Context, Finding, failed, not_run, ok
from worker.doctor.jobs import Ended, Jobs, replace

_ROOM = 2 * 1024**3
"""What a stage may take beyond what it has when it begins."""
_TOO_MUCH = 4 * 1024**3
_BATCH = 4
_FORCED = "forced"
"""A file of the attempt's, made when its memory ran out."""
_OPTIONS: Final[dict[str, Any]] = {"per_device_train_batch_size": _BATCH, "padding_free": False}
_REMEDY = (
    "Jobs that run out of memory are reported as something else, or not halved, here: set smaller "
    "batches by hand, and send this report."
)


def training(context: Context) -> Finding:
    """Without `on_oom: halve_batch` the job says so; with it, it trains as with halved batches."""
    jobs = Jobs.of(context)
    limited = partial(_limit, on=context.device, phase="training")
    plain = jobs.train(prelude=limited, **_OPTIONS)
    problem = _not_out_of_memory(plain, "training")
    if problem is not None:
        return problem
    halved = jobs.train(prelude=limited, on_oom="halve_batch", **_OPTIONS)
    small = jobs.train(per_device_train_batch_size=_BATCH // 2, gradient_accumulation_steps=2)
    for ended in (halved, small):
        if not ended.finished:
            return failed("halving batches fails", reason=ended.how, remedy=_REMEDY)
    # A GPU's kernels may add up in another order each time.
    near = 0.0 if context.device == "cpu" else 1e-4
    if not _was_forced(halved) or not np.allclose(halved.losses, small.losses, near, 0.0):
        reason = f"losses {halved.losses}; begun with the smaller batches {small.losses}"
        summary = "halved batches train otherwise than small ones"
        return failed(summary, reason=reason, remedy=_REMEDY)
    words = "training: ends with `out_of_memory`, or halves its batches"
    return ok(words, losses=halved.losses)


def evaluation(context: Context) -> Finding:
    """An evaluation halves its batches until they fit, with the same numbers; a batch of one that
    does not fit ends the job."""
    jobs = Jobs.of(context)
    limited = partial(_limit, on=context.device, phase="evaluation")
    body = jobs.body("text-classification")
    options = {**_OPTIONS, "eval_strategy": "steps", "eval_steps": 2}
    plain = jobs.train(body, **options)
    halved = jobs.train(body, prelude=limited, **options)
    for ended in (plain, halved):
        if not ended.finished:
            return failed("an evaluation fails", reason=ended.how, remedy=_REMEDY)
    expected, found = (ended.result.metrics["eval_loss"] for ended in (plain, halved))
    if not _was_forced(halved) or abs(found - expected) > 1e-5 * abs(expected):
        reason = f"loss {found} in halved batches, {expected} in whole ones"
        return failed("halved evaluations differ", reason=reason, remedy=_REMEDY)
    none = jobs.train(body, prelude=partial(limited, fits=0), **options)
    words = "evaluation: halves its batches, or ends with `out_of_memory`"
    return _not_out_of_memory(none, "evaluation") or ok(words, loss=found, expected=expected)


def cublas(context: Context) -> Finding:
    """The device is full when the first product wants its workspace. Not where others compute."""
    crowd = _others(context)
    if crowd:
        return not_run("not run", reason=f"other processes use this GPU: {crowd}")
    jobs = Jobs.of(context)
    ended = jobs.train(prelude=_fill_device)
    return _not_out_of_memory(ended, "a product on a full GPU") or ok(
        "cuBLAS without memory: ends with `out_of_memory`", reason_of_stage=ended.how[:300]
    )


def _not_out_of_memory(ended: Ended, what: str) -> Finding | None:
    failure = ended.failure
    if failure is not None and failure.code is FailureCode.OUT_OF_MEMORY:
        return None
    summary = f"{what} without memory does not end with `out_of_memory`"
    return failed(summary, reason=ended.how, remedy=_REMEDY)


def _was_forced(ended: Ended) -> bool:
    return (ended.request.attempt_dir / _FORCED).exists()


def _others(context: Context) -> str:
    """Processes that have memory on the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        uuid = str(context.torch.devices[0]["uuid"])
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return ", ".join(str(process.pid) for process in running)
    except pynvml.NVMLError as error:
        return f"unknown ({error})"
    finally:
        pynvml.nvmlShutdown()


# ---- in the stage's process -------------------------------------------------------------------


def _limit(request: StageRequest, *, on: str, phase: str, fits: int = _BATCH // 2) -> None:
    """Let the model take more memory than there is with a batch of more than `fits` examples."""
    from worker.training import build

    plain = build.prepare_model

    def prepare(model: Any, *arguments: Any) -> None:
        plain(model, *arguments)
        take = partial(_take, on, phase, fits, request.attempt_dir / _FORCED)
        model.register_forward_pre_hook(take, with_kwargs=True)
        (_limit_cpu if on == "cpu" else _limit_gpu)()

    replace(build, "prepare_model", prepare)


def _take(
    on: str,
    phase: str,
    fits: int,
    forced: Path,
    model: Any,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    import torch

    ids = options["input_ids"] if "input_ids" in options else arguments[0]
    if model.training == (phase == "training") and ids.shape[0] > fits:
        forced.touch()
        torch.empty(_TOO_MUCH, dtype=torch.uint8, device=on)


def _limit_cpu() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_gpu() -> None:
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, _ROOM / total))


def _fill_device(_request: StageRequest) -> None:
    """Before the first product, which has cuBLAS allocate its handle and its workspace."""
    from worker.training import loop

    plain = loop.forward_backward

    def forward_backward(*arguments: Any) -> Any:
        with _full_device():
            return plain(*arguments)

    replace(loop, "forward_backward", forward_backward)


@contextmanager
def _full_device() -> Iterator[None]:
    import torch

    held, size = [], 1 << 30
    while size >= 1 << 20:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    yield
    held.clear()
