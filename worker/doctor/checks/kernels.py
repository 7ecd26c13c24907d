"""Checks that Triton kernels and torch.compile work on this machine."""

from typing import Any, Final

import torch

from worker.doctor.check import Context, Finding, failed, ok

_NUMBERS: Final = 4096
_REMEDY: Final = (
    "See the check `compiler`. If it is ok, install the Triton that came with this torch "
    "(`pip install --force-reinstall -c constraints.txt torch triton`). Until then train without "
    "`torch_compile`."
)


def triton_kernel(_: Context) -> Finding:
    from worker.doctor.triton_add import add

    left = torch.arange(_NUMBERS, dtype=torch.float32, device="cuda")
    try:
        total = add(left, left)
    except Exception as error:  # whatever a compiler, a linker or a driver raises
        return failed("a Triton kernel cannot be built", reason=_describe(error), remedy=_REMEDY)
    if not torch.equal(total, left + left):
        return failed(
            "a Triton kernel computes wrong numbers",
            reason="Its x + x differs from the sum that torch computes.",
            remedy=_REMEDY,
        )
    return ok("a Triton kernel was compiled and adds correctly")


def torch_compile(context: Context) -> Finding:
    """Compare a compiled function and its gradient with the plain function."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(64, 64, generator=generator).to(context.device)
    try:
        compiled = _value_and_gradient(torch.compile(_function), values)
    except Exception as error:  # whatever the compiler's stages raise
        return failed("torch.compile fails", reason=_describe(error), remedy=_REMEDY)
    plain = _value_and_gradient(_function, values)
    difference = max(float((a - b).abs().max()) for a, b in zip(compiled, plain, strict=True))
    if not difference < 1e-3:
        return failed(
            "a compiled function computes different numbers",
            reason=f"The largest difference is {difference:.2g}, for values around 1.",
            remedy=_REMEDY,
            difference=difference,
        )
    return ok(
        f"a compiled function and its gradient differ by at most {difference:.1e}",
        difference=difference,
    )


def _function(values: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.gelu(values) * values.softmax(-1)).sum(-1)


def _value_and_gradient(function: Any, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    given = values.clone().requires_grad_()
    result: torch.Tensor = function(given)
    result.sum().backward()
    assert given.grad is not None
    return result.detach(), given.grad


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[-1000:]}"
