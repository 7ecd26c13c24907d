"""Checks that driver, torch and CUDA fit together and see the same GPUs."""

import os
import re
from collections.abc import Sequence
from typing import Any, Final

import pynvml
from pydantic import JsonValue

from worker.devices.gpus import NO_GPU, nvml
from worker.doctor.check import Context, Finding, TorchView, failed, not_run, ok, warning

# A driver runs all builds of its own major CUDA version and of older ones (NVIDIA's "minor version
# compatibility"). Major version → the first Linux driver that supports it.
_OLDEST_DRIVER: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
_INSTALL: Final = (
    "Install the CUDA build: `pip install -c constraints.txt torch` without an index of CPU wheels "
    "(PyPI's torch for x86-64 Linux is the CUDA build)."
)
_ORDER = "CUDA_DEVICE_ORDER"


def driver(context: Context) -> Finding:
    try:
        with nvml():
            version = str(pynvml.nvmlSystemGetDriverVersion())
            newest = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except NO_GPU as error:
        return not_run(reason=f"no NVIDIA driver is loaded here ({error})")
    except pynvml.NVMLError as error:
        return failed(
            "NVIDIA's driver does not respond",
            reason=str(error),
            remedy="Restart the machine if the driver was updated while in use. If this is a "
            "container, start it with the GPUs (`--gpus all`, or docker-compose.gpu.yml).",
        )
    return _compare(version, newest, context)


def _compare(version: str, newest: int, context: Context) -> Finding:
    """`newest`: the CUDA version that the driver was made for, as 1000 * major + 10 * minor."""
    cuda = f"{newest // 1000}.{newest % 1000 // 10}"
    found = f"driver {version} (CUDA {cuda}), {len(context.gpus)} GPU(s)"
    build = context.torch.cuda_build
    if build is not None and int(build.partition(".")[0]) > newest // 1000:
        oldest = _OLDEST_DRIVER.get(int(build.partition(".")[0]))
        needed = f"driver {oldest} or newer" if oldest else f"a driver for CUDA {build}"
        return failed(
            f"{found}: too old for torch {context.torch.version}",
            reason=f"This torch is built with CUDA {build}, which needs {needed}.",
            remedy=f"Install {needed}, or a torch that is built with CUDA {cuda} or older.",
            driver=version,
            cuda=cuda,
        )
    return ok(found, driver=version, cuda=cuda)


def torch_build(context: Context) -> Finding:
    view = context.torch
    if view.version is None:
        return failed(
            "torch cannot be imported",
            reason=view.reason,
            remedy="Install the worker's packages: `pip install 'finetune-service[worker]'`.",
        )
    build = "a CPU build" if view.cuda_build is None else f"built with CUDA {view.cuda_build}"
    unsupported = [str(gpu["name"]) for gpu in view.devices if not _has_kernels(gpu, view)]
    if unsupported:
        return failed(
            f"torch {view.version}, {build}, has no kernels for {', '.join(unsupported)}",
            reason=f"It has kernels for {', '.join(view.architectures)}.",
            remedy="Install a torch build with kernels for this GPU (see docs/gpu.md).",
        )
    if view.available:
        return ok(f"torch {view.version}, {build}: {len(view.devices)} GPU(s) can be used")
    if not context.gpus:
        return ok(f"torch {view.version}, {build}; there is no GPU here", torch_says=view.reason)
    remedy = _INSTALL
    if view.cuda_build is not None:
        remedy = (
            f"Update NVIDIA's driver to one that CUDA {view.cuda_build} supports (see docs/gpu.md),"
            " or restart the machine if the driver was just updated. In a container, start it with "
            "the GPUs (`--gpus all`, or docker-compose.gpu.yml)."
        )
    return failed(
        f"torch {view.version}, {build}, cannot use the {len(context.gpus)} GPU(s) of this machine",
        reason=view.reason,
        remedy=remedy,
    )


def _has_kernels(gpu: dict[str, Any], view: TorchView) -> bool:
    """A kernel runs on GPUs of its own generation that are not older (`sm_80` on 8.6); code for
    compilation (`compute_90`) on all that are not older."""
    major, minor = gpu["capability"]
    for name in view.architectures:
        kind, _, number = name.partition("_")
        built = divmod(int(re.sub(r"\D", "", number)), 10)
        if built <= (major, minor) and (kind == "compute" or built[0] == major):
            return True
    return not view.architectures


def devices(context: Context) -> Finding:
    ours = [_without_prefix(gpu.get("uuid")) for gpu in context.gpus]
    cuda = [_without_prefix(gpu.get("uuid")) for gpu in context.torch.devices]
    names = ", ".join(str(gpu["name"]) for gpu in context.torch.devices)
    listed = {"nvml": _text(context.gpus), "cuda": _text(context.torch.devices)}
    data: dict[str, Any] = {
        **listed,
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
        _ORDER: os.environ.get(_ORDER),
    }
    if any(gpu.get("mig") for gpu in context.gpus) and cuda and set(cuda) <= set(ours):
        # CUDA shows a process at most one MIG instance, and no other GPU at the same time.
        return ok(f"{names}: one of the {len(ours)} GPUs and MIG instances that NVML lists", **data)
    if sorted(ours) != sorted(cuda):
        return failed(
            f"NVML lists {len(ours)} GPU(s) and CUDA {len(cuda)}, and they are not the same",
            reason=f"NVML: {', '.join(listed['nvml']) or 'none'}; "
            f"CUDA: {', '.join(listed['cuda']) or 'none'}.",
            remedy="Set CUDA_VISIBLE_DEVICES to UUIDs of `nvidia-smi -L`, or unset it. For a GPU "
            "in MIG mode use the UUIDs of its instances.",
            **data,
        )
    if ours != cuda:
        return warning(
            f"{names}: the same GPUs in another order",
            reason="CUDA puts the fastest GPU first, NVML follows the PCI bus. The service "
            "uses UUIDs; an index in another tool may mean another GPU.",
            remedy=f"Set {_ORDER}=PCI_BUS_ID for the workers, so that all indices agree.",
            **data,
        )
    return ok(f"{names}: NVML and CUDA agree", **data)


def _without_prefix(uuid: object) -> str:
    """torch leaves the prefix out of some UUIDs."""
    return str(uuid).removeprefix("GPU-").removeprefix("MIG-").lower()


def _text(gpus: Sequence[dict[str, JsonValue]]) -> list[str]:
    return [f"{gpu.get('name')} {gpu.get('uuid')}" for gpu in gpus]
