"""float16 with loss scaling on a CPU, where only torch can: Accelerate and we leave it to GPUs."""

from typing import Any

import pytest
import torch
from accelerate import Accelerator

from service.contract.spec import compatibility
from service.contract.spec.spec import JobSpec
from worker.training import build
from worker.training.distributed.ddp import DDPStrategy

_STEP = DDPStrategy.step


def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage computes `fp16: true` on the CPU, with torch's own scaler and autocast."""

    def accelerator(spec: JobSpec) -> Accelerator:
        made = Accelerator(cpu=True, mixed_precision=build.mixed_precision(spec.training))
        if spec.training.fp16:
            made.native_amp, made.scaler = True, torch.amp.GradScaler("cpu", init_scale=2.0**10)
        return made

    monkeypatch.setattr(build, "accelerator", accelerator)
    monkeypatch.setattr(compatibility, "of_gpus_alone", lambda mode, training: iter(()))


def overflow_at(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """The gradients of these optimizer steps, from now on and from 1, overflow; their losses do
    not."""
    made = iter(range(1, 1000))

    def step(self: DDPStrategy, max_norm: float) -> torch.Tensor:
        if next(made) in steps:
            weights: Any = [value for value in self.model.parameters() if value.grad is not None]
            weights[-1].grad.view(-1)[0] = float("inf")
        return _STEP(self, max_norm)

    monkeypatch.setattr(DDPStrategy, "step", step)
