"""Which layers this machine has, and what a stage could do where one of them is missing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import structlog

from service.settings import Settings
from service.system import own_packages
from worker.sandbox import landlock, machine
from worker.sandbox.confined_command import confined
from worker.sandbox.view import Layer, View

log = structlog.get_logger(__name__)

_TRIAL_SECONDS: Final = 60.0
_MOST_TRIALS: Final = 3


class SandboxError(Exception):
    """FINETUNE_SANDBOX=require, and this machine cannot confine stages completely."""


def used(settings: Settings) -> tuple[Layer, ...]:
    """The layers that confine a stage; none if FINETUNE_SANDBOX is off."""
    if settings.sandbox == "off" or sys.platform != "linux":
        return ()
    wanted = [Layer(name) for name in settings.sandbox_layers.split(",")]
    return tuple(layer for layer in Layer if layer in wanted and _available(layer))


def missing(settings: Settings) -> list[str]:
    """What stages can still do here, the most serious first; empty where FINETUNE_SANDBOX is off,
    because the operator knows that."""
    if settings.sandbox == "off":
        return []
    layers = used(settings)
    abi = landlock.version() if Layer.LANDLOCK in layers else 0
    return list(_gaps(abi, has_namespaces=Layer.NAMESPACES in layers))


def require(settings: Settings) -> None:
    """Raises SandboxError if the operator asks for everything and something is missing."""
    found = missing(settings)
    if settings.sandbox == "require" and found:
        raise SandboxError(
            "FINETUNE_SANDBOX is `require`, and on this machine a stage could still: "
            f"{'; '.join(found)}. Use a newer kernel, allow user namespaces "
            "(docs/sandbox.md), or set FINETUNE_SANDBOX=auto."
        )


def _gaps(abi: int, *, has_namespaces: bool) -> Iterator[str]:
    if has_namespaces:
        if abi < landlock.SCOPES:
            yield "`prepare` and `publish`: connect to abstract unix sockets of this machine"
        if abi < landlock.NETWORK:
            yield "`prepare` and `publish`: connect to any TCP port"
        return
    if abi < landlock.FILES:
        yield "read and change every file of the worker's user"
        yield "trace other processes of the worker's user"
    elif abi < landlock.TRUNCATION:
        yield "truncate files of the worker's user"
    if abi < landlock.SCOPES:
        yield "send signals to other processes of the worker's user"
        yield "connect to abstract unix sockets"
    if abi < landlock.NETWORK:
        yield "use TCP"
    yield "send UDP"
    yield "connect to unix sockets whose path it knows"
    yield "see the names and command lines of other processes"
    yield "read, change and leave behind files in /dev/shm"
    yield "leave processes behind that leave its process group"


def _available(layer: Layer) -> bool:
    return landlock.version() >= landlock.FILES if layer is Layer.LANDLOCK else _has_namespaces()


@lru_cache
def _has_namespaces() -> bool:
    """Tried in a process of its own, because kernels, containers and policies differ in what they
    forbid. If that process was killed, for example for memory, nothing follows: stages must not be
    confined less."""
    for _ in range(_MOST_TRIALS):
        status, reason = _try_namespaces()
        if status not in (None, -signal.SIGKILL):
            break
    if status != 0:
        log.info("sandbox.namespaces_unavailable", status=status, reason=reason)
    return status == 0


def _try_namespaces() -> tuple[int | None, str]:
    """The return code of the process, None if it did not end in time, and the end of its stderr."""
    layers = (Layer.NAMESPACES,)
    devices = machine.devices(with_gpus=False)
    view = View(layers, read=tuple(machine.readable({})), devices=devices)
    with confined([sys.executable, "-I", "-S", "-c", ""], view) as (command, passed):
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **own_packages.variables(os.environ)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TRIAL_SECONDS,
                cwd="/",
                pass_fds=passed,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"it did not end within {_TRIAL_SECONDS:g} s"
    return done.returncode, done.stderr.strip()[-300:]
