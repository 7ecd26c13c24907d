"""What is measured of a CPU once, and kept for the later jobs of a project on the same machine."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from service.contract.stage import prepared_data
from worker.devices.cpus import cpu_flags, cpu_microcode, cpu_name
from worker.storage import verdicts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_LOCK: Final = "cpu_trials"
"""The processes of a training ask at the same time, and must get the same answer."""
# Which of a processor's instructions oneDNN may use.
_VARIABLES: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def known_or_measured(
    folder: Path, trial: Mapping[str, Any], kind: type[T], measure: Callable[[], T]
) -> T | None:
    """What an earlier job has measured on this machine, or the result of `measure`, which is kept
    in `folder`; None if it cannot be kept.

    `trial`: what is measured, plain JSON; `kind`: a dataclass of floats without defaults.
    """
    key = {**trial, **_machine()}
    with prepared_data.locked(folder, _LOCK):
        known = verdicts.read(folder, key) or {}
        with suppress(TypeError):
            earlier = kind(**known)
            if all(isinstance(figure, float) for figure in known.values()):
                return earlier
        found = measure()
        return found if verdicts.write(folder, key, asdict(found)) else None


def _machine() -> dict[str, Any]:
    dnn = (line.strip() for line in torch.__config__.show().splitlines() if "DNN v" in line)
    return {
        "processor": [cpu_name(), cpu_microcode(), *cpu_flags()],
        "versions": [version("torch"), *dnn],
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """For measurements by a thread's own time: so other processes that compute meanwhile change
    little."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
