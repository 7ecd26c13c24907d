"""fp16: a step whose gradients overflow is skipped."""

import json
import math
from typing import Any

from service.contract.stages import StageRequest
from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import Jobs, replace

_BAD_STEP = 2  # from 1
_SEEN = "overflow.json"
_REMEDY = "Use `precision: fp32`, or bf16 where the GPU has it, and send this report."


def overflow(context: Context) -> Finding:
    """One step gets infinite gradients: weights and schedule stay, the loss scale is halved."""
    jobs = Jobs.of(context)
    on_gpu = context.device == "cuda"
    ended = jobs.train(
        prelude=_force_overflow if on_gpu else _scale_on_cpu,
        precision="fp16" if on_gpu else "fp32",
        lr_scheduler_type="linear",
    )
    if not ended.finished:
        return failed("a job with fp16 failed", reason=ended.how, remedy=_REMEDY)
    seen = json.loads((ended.request.attempt_dir / _SEEN).read_text())
    wrong = list(_wrong(seen)) + _not_finite(ended.losses)
    if wrong:
        summary = "a step with an overflow is not left out as it should be"
        return failed(summary, reason="; ".join(wrong), remedy=_REMEDY, steps=seen)
    where = "fp16" if on_gpu else "float32 with a loss scale (fp16 needs a GPU)"
    return ok(f"{where}: the step with an overflow was left out", steps=seen)


def _wrong(seen: list[dict[str, Any]]) -> list[str]:
    """Of each step: what it was before, and the same after it."""
    wrong = []
    for number, step in enumerate(seen, start=1):
        before, after = step["before"], step["after"]
        if number != _BAD_STEP:
            for what in ("weights", "learning_rate"):
                if before[what] == after[what]:
                    wrong.append(f"step {number} did not change the {what.replace('_', ' ')}")
            continue
        for what in ("weights", "learning_rate"):
            if before[what] != after[what]:
                wrong.append(f"the step with the overflow changed the {what.replace('_', ' ')}")
        if after["scale"] != before["scale"] / 2:
            wrong.append(f"the loss scale went from {before['scale']} to {after['scale']}")
    if len(seen) < _BAD_STEP:
        wrong.append(f"only {len(seen)} steps were made")
    return wrong


def _not_finite(losses: list[float]) -> list[str]:
    return [] if all(map(math.isfinite, losses)) else [f"a loss is not finite: {losses}"]


# ---- in the stage's process -------------------------------------------------------------------


def _force_overflow(request: StageRequest) -> None:

    from worker.training import loop
    from worker.training.run import TrainingRun

    plain, seen = loop.train_step, []

    def watched(run: TrainingRun, micro_batches: Any) -> Any:
        before = _state(run)
        if run.state.progress.step == _BAD_STEP - 1:
            _overflow_next(run)
        found = plain(run, micro_batches)
        seen.append({"before": before, "after": _state(run)})
        (request.attempt_dir / _SEEN).write_text(json.dumps(seen))
        return found

    replace(loop, "train_step", watched)


def _overflow_next(run: Any) -> None:
    """Give the next update infinite gradients, as a backward pass that overflows leaves them."""
    strategy = run.state.strategy
    plain = strategy.step

    def step(max_norm: float) -> Any:
        replace(strategy, "step", plain)
        for parameter in run.state.model.parameters():
            if parameter.grad is not None:
                parameter.grad.fill_(math.inf)
        return plain(max_norm)

    replace(strategy, "step", step)


def _state(run: Any) -> dict[str, float]:
    weights = run.state.model.parameters()
    return {
        "weights": sum(float(value.detach().double().abs().sum()) for value in weights),
        "learning_rate": run.state.scheduler.learning_rate(),
        "scale": run.state.accelerator.scaler.get_scale(),
    }


def _scale_on_cpu(request: StageRequest) -> None:
    """Jobs on a CPU refuse fp16; with a loss scale in float32 the loop takes the same way."""
    import torch

    from worker.training import build

    plain = build.accelerator

    def scaling(*arguments: Any, **options: Any) -> Any:
        accelerator = plain(*arguments, **options)
        accelerator.scaler = torch.amp.GradScaler("cpu")
        return accelerator

    replace(build, "accelerator", scaling)
    _force_overflow(request)
