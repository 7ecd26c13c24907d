"""torch.compile's cache, and the verdict whether compiling is faster, passed on within a project.

Each stage compiles into a folder of its own: a stage that is killed leaves half a file, which all
users of a shared cache would load. The folder starts with what earlier jobs of this kind have
compiled; a stage that succeeds saves what it has added for later jobs.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from service.contract.stage import prepared_data
from service.contract.stage.stages import StageRequest
from worker.devices.cpus import cpu_flags
from worker.storage import atomic_dir, content_cache

_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"
# What shapes the graphs. torch checks that a graph fits: a key that is too coarse only costs space.
_OPTIONS: Final = (
    *("precision", "per_device_train_batch_size", "per_device_eval_batch_size"),
    *("activation_checkpointing", "activation_checkpointing_kwargs", "neftune_noise_alpha"),
    *("torch_compile_backend", "torch_compile_mode"),
)


class Verdict:
    """Whether compiled layers are faster in a kind of job, as an earlier job has measured."""

    _FILE: Final = "verdict.json"

    def __init__(self, request: StageRequest) -> None:
        self._root = request.project_cache / prepared_data.COMPILED
        self._key = f"{_key(request)}-verdict"

    def read(self) -> bool | None:
        """None if there is no verdict, or a damaged one."""
        folder = self._root / self._key
        with prepared_data.locked(self._root, self._key):
            if not atomic_dir.verify(folder):
                return None
            return bool(json.loads((folder / self._FILE).read_bytes()))

    def write(self, *, faster: bool) -> None:
        folder = self._root / self._key
        try:
            with prepared_data.locked(self._root, self._key), atomic_dir.writing(folder) as partial:
                (partial / self._FILE).write_text(json.dumps(faster))
        except OSError as error:  # a full disk: the next job measures again
            sys.stderr.write(f"Cannot save whether compiled layers are faster: {error}\n")


@contextmanager
def shared(request: StageRequest, rank: int, *, may_compile: bool) -> Iterator[None]:
    """Around a stage that may compile: provide what earlier jobs have compiled, and save what the
    first process has added."""
    if not may_compile:
        yield
        return
    own = request.attempt_dir / "compiled" / str(rank)
    os.environ[_VARIABLE] = str(own)
    root, key = request.project_cache / prepared_data.COMPILED, _key(request)
    shutil.rmtree(own, ignore_errors=True)
    with prepared_data.locked(root, key):
        if atomic_dir.verify(root / key):
            shutil.copytree(root / key, own, ignore=shutil.ignore_patterns(atomic_dir.MANIFEST))
    known = _files(own)
    yield
    if rank == 0 and _files(own) - known:
        try:
            with prepared_data.locked(root, key), atomic_dir.writing(root / key) as partial:
                shutil.copytree(own, partial, dirs_exist_ok=True)
        except OSError as error:  # a full disk must not fail a training that has succeeded
            sys.stderr.write(f"Cannot save the compiled code for later jobs: {error}\n")


def _files(folder: Path) -> frozenset[str]:
    return frozenset(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _key(request: StageRequest) -> str:
    assert request.prepared is not None
    spec = request.spec
    training = spec.training.model_dump(mode="json", include=set(_OPTIONS))
    config = Path(request.prepared.model_dir) / "config.json"
    return content_cache.address(
        {
            "versions": {name: version(name) for name in ("torch", "transformers", "accelerate")},
            "machine": _machine(),
            "model": hashlib.sha256(config.read_bytes()).hexdigest(),
            "task": spec.task.model_dump(mode="json"),
            "peft": spec.peft and spec.peft.model_dump(mode="json"),
            "processes": spec.resources.processes,
            "training": training,
        }
    )


def _machine() -> Mapping[str, Any]:
    """What the code is compiled for: workers may share a disk but have different processors."""
    gpus = range(torch.cuda.device_count())
    return {
        "python": platform.python_version(),
        "processor": [platform.machine(), *cpu_flags()],
        "gpus": sorted({torch.cuda.get_device_name(gpu) for gpu in gpus}),
    }
