"""In float16, whether an optimizer step was left out because a gradient was not finite.

torch's GradScaler does not call most optimizers then, which Accelerate notices. A fused one is
called all the same, and its kernel leaves the weights as they are: by `found_inf`, a number on the
device, which the scaler gives it for the call (accelerate issue 4242).
"""

from collections.abc import Callable
from typing import Any

import torch


class SkippedSteps:
    """Knows of each call of `optimizer.step` whether the scaler let it be one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._found: Callable[[], bool] | None = None
        optimizer.register_step_pre_hook(self._called)

    def last(self) -> Callable[[], bool]:
        """Whether the last step was left out; asked as late as possible it does not keep the device
        waiting, which need not have made that step yet. To be called once after each step."""
        found, self._found = self._found, None
        return found or _left_out

    def _called(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # Without it the scaler has looked already: it calls such an optimizer for a good step only.
        found = getattr(optimizer, "found_inf", None)
        self._found = _made if found is None else _ReadLater(found)


class _ReadLater:
    """A number of the device on its way to the host; whoever asks waits for what was queued before
    it alone, and not for the forward pass that follows."""

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


def _left_out() -> bool:
    return True


def _made() -> bool:
    return False
