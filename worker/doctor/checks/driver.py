"""Checks that the NVIDIA driver works and is new enough for torch's CUDA build."""

from typing import Final

import pynvml

from worker.devices.gpus import NO_GPU, nvml
from worker.doctor.check import Context, Finding, failed, not_run, ok

# A driver runs all builds of its own major CUDA version and of older ones (NVIDIA's "minor version
# compatibility"). Major version → the first Linux driver that supports it.
OLDEST_DRIVER: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


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
        oldest = OLDEST_DRIVER.get(int(build.partition(".")[0]))
        needed = f"driver {oldest} or newer" if oldest else f"a driver for CUDA {build}"
        return failed(
            f"{found}: too old for torch {context.torch.version}",
            reason=f"This torch is built with CUDA {build}, which needs {needed}.",
            remedy=f"Install {needed}, or a torch that is built with CUDA {cuda} or older.",
            driver=version,
            cuda=cuda,
        )
    return ok(found, driver=version, cuda=cuda)
