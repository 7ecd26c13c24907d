"""Checks which torch is installed and whether it can use the GPUs."""

from typing import Final

from worker.doctor.check import Context, Finding, failed, ok

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
    if view.available:
        return ok(f"torch {view.version}, {build}: {len(view.devices)} GPU(s) can be used")
    if not context.gpus:
        return ok(f"torch {view.version}, {build}; there is no GPU here", torch_says=view.reason)
    remedy = _INSTALL if view.cuda_build is None else _remedy(view.cuda_build)
    return failed(
        f"torch {view.version}, {build}, cannot use the {len(context.gpus)} GPU(s) of this machine",
        reason=view.reason,
        remedy=remedy,
    )


def _remedy(build: str) -> str:
    return (
        f"Update NVIDIA's driver to one that CUDA {build} supports (see docs/gpu.md), or restart "
        "the machine if the driver was just updated. In a container, start it with the GPUs "
        "(`--gpus all`, or docker-compose.gpu.yml)."
    )
