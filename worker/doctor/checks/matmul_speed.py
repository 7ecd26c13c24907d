"""How fast large matrix products are, against what the table of peaks says of this GPU."""

import time
from typing import Final

import torch
from pydantic import JsonValue

from worker.doctor.check import Context, Finding, ok, warning
from worker.training.flops import peak_of

_SIZE: Final = {"cuda": 8192, "cpu": 512}
_SECONDS: Final = 0.5
# What a well cooled GPU reaches of its data sheet's number is 60 to 90 percent.
_LOW: Final = 0.4


def matmul_speed(context: Context) -> Finding:
    """Teraflops of each precision on the first device."""
    device = torch.device(context.device)
    if device.type == "cpu":
        measured = {"fp32": _teraflops(torch.float32, device)}
        measured["bf16"] = _teraflops(torch.bfloat16, device)
        told = ", ".join(f"{name} {1000 * speed:.1f}" for name, speed in measured.items())
        return ok(f"gigaflops with {torch.get_num_threads()} thread(s): {told}", **measured)
    return _against_table(device, _measured_on_gpu(device))


def _measured_on_gpu(device: torch.device) -> dict[str, float]:
    measured = {}
    for name, setting in (("fp32", "ieee"), ("tf32", "tf32")):
        torch.backends.cuda.matmul.fp32_precision = setting
        measured[name] = _teraflops(torch.float32, device)
    measured["bf16"] = _teraflops(torch.bfloat16, device)
    measured["fp16"] = _teraflops(torch.float16, device)
    return measured


def _against_table(device: torch.device, measured: dict[str, float]) -> Finding:
    name = torch.cuda.get_device_name(device)
    peaks = {
        kind: peak_of(name, "no" if kind in ("fp32", "tf32") else kind, tf32=kind == "tf32")
        for kind in measured
    }
    shares = {k: measured[k] * 1e12 / peak for k, peak in peaks.items() if peak}
    told = ", ".join(f"{k} {v:.1f}{_share(shares.get(k))}" for k, v in measured.items())
    data: dict[str, JsonValue] = {**measured, "shares": dict(shares)}
    if not shares:
        return ok(
            f"{name}: teraflops {told}; its peak is not in our table: MFU is left out", **data
        )
    low = [kind for kind, share in shares.items() if share < _LOW]
    if low and not _has_no(low, name):
        return warning(
            f"{name}: teraflops {told}",
            reason=f"{', '.join(low)}: less than {_LOW:.0%} of what the data sheet says.",
            remedy="Look at power limit, clocks and temperature with `nvidia-smi -q -d "
            "POWER,CLOCK,TEMPERATURE,PERFORMANCE`, and whether something else uses the GPU. If all "
            "is well there, the table has a wrong number for this GPU: send this report.",
            **data,
        )
    return ok(f"{name}: teraflops {told}", **data)


def _has_no(low: list[str], name: str) -> bool:
    """Whether only bf16 is slow, on a GPU before Ampere, which emulates it."""
    return low == ["bf16"] and torch.cuda.get_device_capability()[0] < 8 and bool(name)


def _share(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%} of the table)"


def _teraflops(dtype: torch.dtype, device: torch.device) -> float:
    size = _SIZE[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in "ab")
    left @ right  # the first one loads the libraries
    _wait(device)
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < _SECONDS:
        left @ right
        _wait(device)
        count += 1
    return round(2 * size**3 * count / passed / 1e12, 6)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
