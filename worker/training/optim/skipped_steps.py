"""Whether loss scaling in float16 skipped an optimizer step because a gradient was not finite.

torch's GradScaler does not call most optimizers then, which Accelerate notices. It does call a
fused optimizer, whose kernel leaves the weights unchanged if `found_inf` is set, a number on the
device that the scaler passes for the call (accelerate issue 4242).
"""

from collections.abc import Callable
from typing import Any

import torch


class SkippedSteps:
    """Tracks for each call of `optimizer.step` whether the scaler skipped it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._found: Callable[[], bool] | None = None
        optimizer.register_step_pre_hook(self._called)

    def last(self) -> Callable[[], bool]:
        """Whether the last step was skipped. Call this once after each step, and the function that
        it returns as late as possible: the device may not have computed the step yet."""
        found, self._found = self._found, None
        return found or (lambda: True)

    def _called(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # The scaler calls an optimizer without `found_inf` only if all gradients are finite.
        found = getattr(optimizer, "found_inf", None)
        self._found = (lambda: False) if found is None else _ReadLater(found)


class _ReadLater:
    """A number that is being copied from the device to the host. Reading it waits only for work
    that was queued before it, not for the forward pass that follows."""

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value.detach().to("cpu", non_blocking=True)
        self._event = None
        if value.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record()

    def __call__(self) -> bool:
        if self._event is not None:
            self._event.synchronize()
        return bool(self._value)
