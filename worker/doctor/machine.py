"""Describes the machine for the report."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil
import pynvml
from pydantic import JsonValue

from worker.devices.cpus import cores, cpu_name
from worker.devices.gpus import devices, nvml
from worker.doctor.check import TorchView

_PACKAGES: Final = (
    *("finetune-service", "torch", "triton", "transformers", "accelerate", "peft", "datasets"),
    *("tokenizers", "safetensors", "bitsandbytes", "torchao", "liger-kernel", "deepspeed"),
    *("numpy", "mlflow-skinny", "mlflow", "huggingface-hub", "nvidia-ml-py", "psutil"),
    *("fastapi", "pydantic", "SQLAlchemy", "psycopg", "celery", "redis"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
_GIB: Final = 1024**3


def describe(torch: TorchView) -> dict[str, JsonValue]:
    """The machine itself, for the report."""
    memory = psutil.virtual_memory()
    return {
        "os": _os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_gib": round(memory.total / _GIB, 1),
        "memory_available_gib": round(memory.available / _GIB, 1),
        "container": _container(),
        "driver": _driver_version(),
        "gpus": [device for device in devices() if device["type"] != "cpu"],
        "torch": torch.model_dump(mode="json"),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _driver_version() -> str | None:
    try:
        with nvml():
            return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def _container() -> str:
    """By its marker files and variables."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "docker" if Path("/.dockerenv").exists() else "none"


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # not Linux
        return f"{platform.system()} {platform.release()}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
