"""Compares the speed of large matrix products with the peak speeds of this GPU."""

import time
from typing import Final

import torch
from pydantic import JsonValue

from worker.doctor.check import Context, Finding, ok, warning
from worker.training.flops import peak_of

_SIZE: Final = {"cuda": 8192, "cpu": 512}
_SECONDS: Final = 0.5
# A well cooled GPU reaches 60 to 90 percent of the speed in its data sheet.
_MIN_SHARE: Final = 0.4


def matmul_speed(context: Context) -> Finding:
    """Teraflops in each precision on the first device."""
    device = torch.device(context.device)
    if device.type == "cpu":
        measured = {"fp32": _teraflops(torch.float32, device)}
        measured["bf16"] = _teraflops(torch.bfloat16, device)
        text = ", ".join(f"{name} {1000 * speed:.1f}" for name, speed in measured.items())
        return ok(f"gigaflops with {torch.get_num_threads()} thread(s): {text}", **measured)
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
    text = ", ".join(f"{k} {v:.1f}{_share(shares.get(k))}" for k, v in measured.items())
    data: dict[str, JsonValue] = {**measured, "shares": dict(shares)}
    if not shares:
        return ok(f"{name}: teraflops {text}; its peak speed is unknown: MFU is left out", **data)
    low = [kind for kind, share in shares.items() if share < _MIN_SHARE]
    if low and not _only_bf16_is_emulated(low):
        return warning(
            f"{name}: teraflops {text}",
            reason=f"{', '.join(low)}: less than {_MIN_SHARE:.0%} of the speed in the data sheet.",
            remedy="Check power limit, clocks and temperature with `nvidia-smi -q -d "
            "POWER,CLOCK,TEMPERATURE,PERFORMANCE`, and whether another program uses the GPU. If "
            "they are fine, our peak speed for this GPU is wrong: send this report.",
            **data,
        )
    return ok(f"{name}: teraflops {text}", **data)


def _only_bf16_is_emulated(low: list[str]) -> bool:
    """Whether only bf16 is slow, on a GPU before Ampere, which emulates it."""
    return low == ["bf16"] and torch.cuda.get_device_capability()[0] < 8


def _share(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%} of the peak)"


def _teraflops(dtype: torch.dtype, device: torch.device) -> float:
    size = _SIZE[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in "ab")
    left @ right  # the first product loads the libraries
    _synchronize(device)
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < _SECONDS:
        left @ right
        _synchronize(device)
        count += 1
    return round(2 * size**3 * count / passed / 1e12, 6)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
