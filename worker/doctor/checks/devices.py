"""Checks that NVML and CUDA list the same GPUs, by UUID, in the same order."""

import os
from collections.abc import Sequence

from pydantic import JsonValue

from worker.doctor.check import Context, Finding, failed, ok, warning

_ORDER = "CUDA_DEVICE_ORDER"


def devices(context: Context) -> Finding:
    nvml = [_without_prefix(gpu.get("uuid")) for gpu in context.gpus]
    cuda = [_without_prefix(gpu.get("uuid")) for gpu in context.torch.devices]
    names = ", ".join(str(gpu["name"]) for gpu in context.torch.devices)
    data: dict[str, JsonValue] = {
        "nvml": [*_text(context.gpus)],
        "cuda": [*_text(context.torch.devices)],
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
        _ORDER: os.environ.get(_ORDER),
    }
    if any(gpu.get("mig") for gpu in context.gpus) and cuda and set(cuda) <= set(nvml):
        # CUDA shows a process at most one MIG instance, and no other GPU at the same time.
        return ok(f"{names}: one of the {len(nvml)} GPUs and MIG instances that NVML lists", **data)
    if sorted(nvml) != sorted(cuda):
        return failed(
            f"NVML lists {len(nvml)} GPU(s) and CUDA {len(cuda)}, and they are not the same",
            reason=f"NVML: {', '.join(_text(context.gpus)) or 'none'}; "
            f"CUDA: {', '.join(_text(context.torch.devices)) or 'none'}.",
            remedy="Set CUDA_VISIBLE_DEVICES to UUIDs of `nvidia-smi -L`, or unset it. For a GPU "
            "in MIG mode use the UUIDs of its instances.",
            **data,
        )
    if nvml != cuda:
        return warning(
            f"{names}: the same GPUs in another order",
            reason="CUDA puts the fastest GPU first, NVML follows the PCI bus. The service "
            "uses UUIDs; an index in another tool may mean another GPU.",
            remedy=f"Set {_ORDER}=PCI_BUS_ID for the workers, so that all indices agree.",
            **data,
        )
    return ok(f"{names}: NVML and CUDA agree", **data)


def _without_prefix(uuid: object) -> str:
    """The UUID without its prefix, which torch leaves out."""
    return str(uuid).removeprefix("GPU-").removeprefix("MIG-").lower()


def _text(gpus: Sequence[dict[str, JsonValue]]) -> list[str]:
    return [f"{gpu.get('name')} {gpu.get('uuid')}" for gpu in gpus]
