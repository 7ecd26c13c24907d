"""Which NVIDIA GPUs this machine has; asks the driver, never torch."""

import os
import shutil
import subprocess
from collections.abc import Mapping


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Values for CUDA_VISIBLE_DEVICES, one per GPU that this process may use."""
    found = _from_driver()
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not found:
        return found
    return [device.strip() for device in chosen.split(",") if device.strip()]


def _from_driver() -> list[str]:
    try:
        import pynvml  # nvidia-ml-py comes with the worker's packages
    except ImportError:
        return _from_command()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, no GPU
        return []
    try:
        return [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _from_command() -> list[str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    answer = subprocess.run(
        [command, "--query-gpu=index", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    return answer.stdout.split() if answer.returncode == 0 else []
