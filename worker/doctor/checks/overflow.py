"""Checks that a step whose fp16 gradients overflow is skipped."""

import json
import math
from typing import Any

from service.contract.stages import StageRequest
from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import Jobs, replace

_BAD_STEP = 2  # counted from 1
_RECORD = "overflow.json"
_REMEDY = "Use `precision: fp32`, or bf16 if the GPU supports it, and send this report."


def overflow(context: Context) -> Finding:
    """A step with infinite gradients must halve the loss scale and change nothing else."""
    jobs = Jobs.of(context)
    on_gpu = context.device == "cuda"
    ended = jobs.train(
        prelude=_force_overflow if on_gpu else _scale_on_cpu,
        precision="fp16" if on_gpu else "fp32",
        lr_scheduler_type="linear",
    )
    if not ended.finished:
        return failed("a job with fp16 failed", reason=ended.ending, remedy=_REMEDY)
    steps = json.loads((ended.request.attempt_dir / _RECORD).read_text())
    errors = list(_errors(steps)) + _not_finite(ended.losses)
    if errors:
        summary = "a step with an overflow is not skipped correctly"
        return failed(summary, reason="; ".join(errors), remedy=_REMEDY, steps=steps)
    where = "fp16" if on_gpu else "float32 with a loss scale (fp16 needs a GPU)"
    return ok(f"{where}: the step with an overflow was skipped", steps=steps)


def _errors(steps: list[dict[str, Any]]) -> list[str]:
    """The errors in the recorded states before and after each step."""
    errors = []
    for number, step in enumerate(steps, start=1):
        before, after = step["before"], step["after"]
        if number != _BAD_STEP:
            for what in ("weights", "learning_rate"):
                if before[what] == after[what]:
                    errors.append(f"step {number} did not change the {what.replace('_', ' ')}")
            continue
        for what in ("weights", "learning_rate"):
            if before[what] != after[what]:
                errors.append(f"the step with the overflow changed the {what.replace('_', ' ')}")
        if after["scale"] != before["scale"] / 2:
            errors.append(f"the loss scale went from {before['scale']} to {after['scale']}")
    if len(steps) < _BAD_STEP:
        errors.append(f"only {len(steps)} steps ran")
    return errors


def _not_finite(losses: list[float]) -> list[str]:
    return [] if all(map(math.isfinite, losses)) else [f"a loss is not finite: {losses}"]


# ---- in the stage's process -------------------------------------------------------------------


def _force_overflow(request: StageRequest) -> None:

    from worker.training import loop
    from worker.training.run import TrainingRun

    plain, steps = loop.train_step, []

    def recording(run: TrainingRun, micro_batches: Any) -> Any:
        before = _state(run)
        if run.state.progress.step == _BAD_STEP - 1:
            _overflow_next(run)
        found = plain(run, micro_batches)
        steps.append({"before": before, "after": _state(run)})
        (request.attempt_dir / _RECORD).write_text(json.dumps(steps))
        return found

    replace(loop, "train_step", recording)


def _overflow_next(run: Any) -> None:
    """Make the next update's gradients infinite, as an overflow in the backward pass does."""
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
    """Jobs on a CPU refuse fp16; float32 with a loss scale runs the same code."""
    import torch

    from worker.training import build

    plain = build.accelerator

    def scaling(*arguments: Any, **options: Any) -> Any:
        accelerator = plain(*arguments, **options)
        accelerator.scaler = torch.amp.GradScaler("cpu")
        return accelerator

    replace(build, "accelerator", scaling)
    _force_overflow(request)
