"""Whether NVML and CUDA see the same GPUs in the same order, each named by its UUID."""

import os
from collections.abc import Sequence

from pydantic import JsonValue

from worker.doctor.check import Context, Finding, failed, ok, warning

_ORDER = "CUDA_DEVICE_ORDER"


def devices(context: Context) -> Finding:
    nvml = [_bare(gpu.get("uuid")) for gpu in context.gpus]
    cuda = [_bare(gpu.get("uuid")) for gpu in context.torch.devices]
    names = ", ".join(str(gpu["name"]) for gpu in context.torch.devices)
    data: dict[str, JsonValue] = {
        "nvml": [*_text(context.gpus)],
        "cuda": [*_text(context.torch.devices)],
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
        _ORDER: os.environ.get(_ORDER),
    }
    if any(gpu.get("mig") for gpu in context.gpus) and cuda and set(cuda) <= set(nvml):
        # CUDA shows a process one instance at most, and no other GPU with it.
        return ok(f"{names}: one of the {len(nvml)} GPUs and MIG instances that NVML lists", **data)
    if sorted(nvml) != sorted(cuda):
        return failed(
            f"NVML lists {len(nvml)} GPU(s) and CUDA {len(cuda)}, and they are not the same",
            reason=f"NVML: {', '.join(_text(context.gpus)) or 'none'}; "
            f"CUDA: {', '.join(_text(context.torch.devices)) or 'none'}.",
            remedy="Set CUDA_VISIBLE_DEVICES to UUIDs of `nvidia-smi -L`, or unset it. A GPU in "
            "MIG mode is used by the UUIDs of its instances.",
            **data,
        )
    if nvml != cuda:
        return warning(
            f"{names}: the same GPUs in another order",
            reason="CUDA puts the fastest GPU first, NVML follows the PCI bus. The service goes by "
            "UUID; numbers in other tools may mean another GPU.",
            remedy=f"Set {_ORDER}=PCI_BUS_ID for the workers, so that all tools count alike.",
            **data,
        )
    return ok(f"{names}: NVML and CUDA agree", **data)


def _bare(uuid: object) -> str:
    """Without the prefix, which torch leaves out."""
    return str(uuid).removeprefix("GPU-").removeprefix("MIG-").lower()


def _text(gpus: Sequence[dict[str, JsonValue]]) -> list[str]:
    return [f"{gpu.get('name')} {gpu.get('uuid')}" for gpu in gpus]
