"""Checks which torch is installed and whether it can use the GPUs."""

import re
from typing import Any, Final

from worker.doctor.check import Context, Finding, TorchView, failed, ok

_INSTALL: Final = (
    "Install the CUDA build: `pip install -c constraints.txt torch` without an index of CPU wheels "
    "(PyPI's torch for x86-64 Linux is the CUDA build)."
)


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
