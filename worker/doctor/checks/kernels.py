"""Checks torch.compile, which compiles with Triton on a GPU, and the error of a full GPU."""

from typing import Any, Final

import torch

from service.contract.failures import FailureCode
from worker import failures
from worker.doctor.check import Context, Finding, failed, ok

_REMEDY: Final = (
    "See the check `compiler`. If it is ok, install the Triton that came with this torch "
    "(`pip install --force-reinstall -c constraints.txt torch triton`). Until then train without "
    "`torch_compile`."
)


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


def out_of_memory(_: Context) -> Finding:
    """More memory than any GPU has: a job must end with that cause, and not with another one."""
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        code = failures.from_exception(error).code
        if code is FailureCode.OUT_OF_MEMORY:
            return ok(f"a job without GPU memory fails with `{code}`")
        reason = f"{_describe(error)}, which is taken for `{code}`"
    else:
        reason = "A pebibyte could be allocated."
    return failed(
        "a job without GPU memory does not fail with `out_of_memory`",
        reason=reason,
        remedy="Set smaller batches by hand on this machine, and send this report.",
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
