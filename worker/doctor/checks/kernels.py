"""Checks matrix products, torch.compile (with Triton on a GPU), and the error of a full GPU."""

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from pydantic import JsonValue

from service.contract.failures import FailureCode
from worker import failures
from worker.doctor.check import Context, Finding, failed, ok
from worker.training import cpu_products

_SIZE: Final = 512  # rows and columns of the matrices, which hold normally distributed numbers
_COMPILE_REMEDY: Final = (
    "See the check `compiler`. If it is ok, install the Triton that came with this torch "
    "(`pip install --force-reinstall -c constraints.txt torch triton`). Until then train without "
    "`torch_compile`."
)


@dataclass(frozen=True)
class Kind:
    """`tolerance`: the largest ||product - exact|| / ||exact||, about three times the error from
    rounding random inputs to the bits of the type (bfloat16 has 8, float16 and TF32 11, float32
    24); the error of a broken product is hundreds of times larger."""

    name: str
    dtype: torch.dtype
    tolerance: float
    fp32_precision: str = "ieee"


_KINDS: Final = (
    Kind("fp32", torch.float32, 1e-5),
    Kind("tf32", torch.float32, 2e-3, fp32_precision="tf32"),
    Kind("bf16", torch.bfloat16, 1e-2),
    Kind("fp16", torch.float16, 2e-3),
)
_ON_CPU: Final = ("fp32", "bf16")


def products(context: Context) -> Finding:
    """Multiply on each GPU, or on the CPU if there is none."""
    on_gpu = context.device == "cuda"
    places = [f"cuda:{gpu['index']}" for gpu in context.torch.devices] if on_gpu else ["cpu"]
    errors: dict[str, JsonValue] = {}
    wrong: list[str] = []
    for place in places:
        for kind in (kind for kind in _KINDS if on_gpu or kind.name in _ON_CPU):
            error = _relative_error(kind, torch.device(place))
            errors[f"{place} {kind.name}"] = error
            if not error <= kind.tolerance:  # also if it is NaN
                wrong.append(f"{kind.name} on {place}: {error:.2g} (at most {kind.tolerance:g})")
    names = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    if wrong:
        return failed(
            "a matrix product is wrong",
            reason="Relative error against float64: " + "; ".join(wrong),
            remedy="A GPU that computes wrong results is broken, too hot or overclocked: check for "
            "Xid errors in `dmesg` and ECC errors with `nvidia-smi -q -d ECC`. Do not train on it."
            if on_gpu
            else "Reinstall torch; if that does not help, send this report.",
            relative_errors=errors,
        )
    summary = f"relative errors against float64: {names}"
    found: dict[str, Any] = {
        "relative_errors": errors,
        "capability": [gpu["capability"] for gpu in context.torch.devices],
    }
    if on_gpu:
        return ok(summary, **found)
    seconds = cpu_products.measured(cpu_products.USUAL)
    chosen = "bf16" if seconds.bfloat16 < seconds.float32 else "fp32"
    return ok(
        f"{summary}; a pass through layers of 768 takes {seconds}: `precision: auto` is {chosen} "
        "for models of this size",
        **found,
        layer_seconds=asdict(seconds),
    )


def _relative_error(kind: Kind, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, _SIZE, _SIZE, dtype=torch.float64, generator=generator)
    if device.type == "cuda":
        torch.backends.cuda.matmul.fp32_precision = kind.fp32_precision
    product = left.to(device, kind.dtype) @ right.to(device, kind.dtype)
    exact = left @ right
    return float((product.cpu().double() - exact).norm() / exact.norm())


def torch_compile(context: Context) -> Finding:
    """Compare a compiled function and its gradient with the plain function."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(64, 64, generator=generator).to(context.device)
    try:
        compiled = _value_and_gradient(torch.compile(_function), values)
    except Exception as error:  # whatever the compiler's stages raise
        return failed("torch.compile fails", reason=_describe(error), remedy=_COMPILE_REMEDY)
    plain = _value_and_gradient(_function, values)
    difference = max(float((a - b).abs().max()) for a, b in zip(compiled, plain, strict=True))
    if not difference < 1e-3:
        return failed(
            "a compiled function computes different numbers",
            reason=f"The largest difference is {difference:.2g}, for values around 1.",
            remedy=_COMPILE_REMEDY,
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
