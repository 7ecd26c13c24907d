"""Forces a stage out of memory: the job must fail with `out_of_memory`, or halve its batches if
the spec allows it."""

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

_ALLOWED_BYTES = 2 * 1024**3
"""Memory that a stage may allocate after the model is loaded."""
_EXCESSIVE_BYTES = 4 * 1024**3
_BATCH = 4
_FORCED = "forced"
"""A file in the attempt's folder, created when its memory runs out."""
_OPTIONS: Final[dict[str, Any]] = {"per_device_train_batch_size": _BATCH, "padding_free": False}
_REMEDY = (
    "On this machine, jobs that run out of memory fail with another cause or do not halve their "
    "batches: set smaller batches by hand, and send this report."
)


def training(context: Context) -> Finding:
    """Without `on_oom: halve_batch` the job fails with `out_of_memory`; with it, it trains exactly
    as with smaller batches."""
    jobs = Jobs.of(context)
    limited = partial(_limit, on=context.device, phase="training")
    plain = jobs.train(prelude=limited, **_OPTIONS)
    problem = _other_cause(plain, "training")
    if problem is not None:
        return problem
    halved = jobs.train(prelude=limited, on_oom="halve_batch", **_OPTIONS)
    halves = {"per_device_train_batch_size": _BATCH // 2, "gradient_accumulation_steps": 2}
    small = jobs.train(**(_OPTIONS | halves))
    for ended in (halved, small):
        if not ended.finished:
            return failed("halving batches fails", reason=ended.ending, remedy=_REMEDY)
    # A GPU's kernels may add numbers in a different order each time.
    tolerance = 0.0 if context.device == "cpu" else 1e-4
    if not _was_forced(halved) or not np.allclose(halved.losses, small.losses, tolerance, 0.0):
        reason = f"losses {halved.losses}; started with the smaller batches {small.losses}"
        summary = "halved batches do not train like small ones"
        return failed(summary, reason=reason, remedy=_REMEDY)
    summary = "training: fails with `out_of_memory`, or halves its batches"
    return ok(summary, losses=halved.losses)


def evaluation(context: Context) -> Finding:
    """An evaluation halves its batches until they fit, with the same metrics; the job fails if even
    a batch of one does not fit."""
    jobs = Jobs.of(context)
    limited = partial(_limit, on=context.device, phase="evaluation")
    body = jobs.body("text-classification")
    options = {**_OPTIONS, "eval_strategy": "steps", "eval_steps": 2}
    plain = jobs.train(body, **options)
    halved = jobs.train(body, prelude=limited, **options)
    for ended in (plain, halved):
        if not ended.finished:
            return failed("an evaluation fails", reason=ended.ending, remedy=_REMEDY)
    expected, found = (ended.result.metrics["eval_loss"] for ended in (plain, halved))
    if not _was_forced(halved) or abs(found - expected) > 1e-5 * abs(expected):
        reason = f"loss {found} in halved batches, {expected} in full ones"
        return failed("halved evaluations differ", reason=reason, remedy=_REMEDY)
    none = jobs.train(body, prelude=partial(limited, max_batch_size=0), **options)
    summary = "evaluation: halves its batches, or fails with `out_of_memory`"
    return _other_cause(none, "evaluation") or ok(summary, loss=found, expected=expected)


def cublas(context: Context) -> Finding:
    """Fill the device before cuBLAS allocates its workspace, unless others use the device."""
    others = _others(context)
    if others:
        return not_run("not run", reason=f"other processes use this GPU: {others}")
    jobs = Jobs.of(context)
    ended = jobs.train(prelude=_fill_device)
    return _other_cause(ended, "a product on a full GPU") or ok(
        "cuBLAS without memory: fails with `out_of_memory`", reason_of_stage=ended.ending[:300]
    )


def _other_cause(ended: Ended, what: str) -> Finding | None:
    failure = ended.failure
    if failure is not None and failure.code is FailureCode.OUT_OF_MEMORY:
        return None
    summary = f"{what} without memory does not fail with `out_of_memory`"
    return failed(summary, reason=ended.ending, remedy=_REMEDY)


def _was_forced(ended: Ended) -> bool:
    return (ended.request.attempt_dir / _FORCED).exists()


def _others(context: Context) -> str:
    """The processes that use memory of the first GPU."""
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


def _limit(
    request: StageRequest, *, on: str, phase: str, max_batch_size: int = _BATCH // 2
) -> None:
    """Make the model run out of memory with more than `max_batch_size` examples in a batch."""
    from worker.training import build

    plain = build.prepare_model

    def prepare(model: Any, *arguments: Any) -> None:
        plain(model, *arguments)
        allocate = partial(_allocate, on, phase, max_batch_size, request.attempt_dir / _FORCED)
        model.register_forward_pre_hook(allocate, with_kwargs=True)
        (_limit_cpu if on == "cpu" else _limit_gpu)()

    replace(build, "prepare_model", prepare)


def _allocate(
    on: str,
    phase: str,
    max_batch_size: int,
    forced: Path,
    model: Any,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    import torch

    ids = options["input_ids"] if "input_ids" in options else arguments[0]
    if model.training == (phase == "training") and ids.shape[0] > max_batch_size:
        forced.touch()
        torch.empty(_EXCESSIVE_BYTES, dtype=torch.uint8, device=on)


def _limit_cpu() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _ALLOWED_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_gpu() -> None:
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, _ALLOWED_BYTES / total))


def _fill_device(_request: StageRequest) -> None:
    """Fill the device before the first product, in which cuBLAS allocates its workspace."""
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
