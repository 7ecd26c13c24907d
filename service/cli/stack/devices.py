"""Which GPUs this machine has: those that its workers find, by asking the worker's own module."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from service.cli.terminal.exit_codes import UsageError
from service.system import own_packages

_SECONDS: Final = 60.0


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """UUIDs of the GPUs, and of the MIG instances, that workers with this environment can use.

    UsageError if they cannot be listed.
    """
    return [device["uuid"] for device in found_devices(environ) if device.get("uuid")]


def found_devices(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a worker with this environment registers; UsageError if it cannot be listed."""
    try:
        done = subprocess.run(
            own_packages.python("worker.devices.gpus"),
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"the GPUs cannot be listed: NVIDIA's driver did not answer within {_SECONDS:g} s; "
            "see whether nvidia-smi does"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"the devices cannot be listed: {last}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
