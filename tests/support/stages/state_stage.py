"""A stage that records the state of its process; `heavy`: and what the libraries have read. If it
is asked to train, it then trains.

`python -P -m tests.support.stages.state_stage <request>`, new or forked: both must write the same.
"""

import ctypes
import importlib
import json
import os
import random
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from service.contract.stage.stages import PublishResult, StageRequest
from service.contract.states import Stage
from worker.stages.base import Channel, run_stage

LIBRARIES = ("huggingface_hub", "datasets", "transformers", "accelerate", "peft", "tokenizers")
NATIVE = (
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "GOMP_SPINCOUNT",
    "OMP_WAIT_POLICY",
    "GLIBC_TUNABLES",
)
CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_NVML_BASED_CUDA_CHECK")


def main(request: StageRequest, channel: Channel) -> BaseModel:
    state = _process()
    if request.spec.metadata["stub.prepare"] == "heavy":
        for stage in ("prepare", "train", "publish"):
            importlib.import_module(f"worker.stages.{stage}.stage")
        state |= {"threads": _threads(), "constants": _constants()}
    state["drawn"] = _drawn()
    (request.attempt_dir / "state.json").write_text(json.dumps(state))
    if request.stage is Stage.TRAIN:
        trained: BaseModel = importlib.import_module("worker.stages.train.stage").main(
            request, channel
        )
        return trained
    return PublishResult()


def _process() -> dict[str, Any]:
    out: Any = sys.stdout
    err: Any = sys.stderr
    status = dict(line.split(":\t", 1) for line in _lines("/proc/self/status") if ":\t" in line)
    descriptors = {fd.name: _target(fd) for fd in Path("/proc/self/fd").iterdir()}
    return {
        "argv": sys.argv[1:],
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": list(sys.flags),
        "cwd": str(Path.cwd()),
        "environment": {k: v for k, v in os.environ.items() if k != "FINETUNE_EVENT_FD"},
        "getenv": {name: value for name in NATIVE if (value := _getenv(name)) is not None},
        "cuda": {name: _getenv(name) for name in CUDA},
        "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)],
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")],
        "umask": status["Umask"],
        "streams": [descriptors[fd] for fd in "012"],
        "descriptors": sorted(target for target in descriptors.values() if target),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "buffered": [out.write_through, err.write_through, out.encoding],
    }


def _getenv(name: str) -> str | None:
    """As libraries in C read it, at any time."""
    function = ctypes.CDLL(None).getenv
    function.restype = ctypes.c_char_p
    value: bytes | None = function(name.encode())
    return None if value is None else value.decode()


def _drawn() -> list[float]:
    """Random numbers without a seed, of each library that has been imported."""
    torch = sys.modules.get("torch")
    return [random.random(), np.random.random(), *([torch.rand(1).item()] if torch else [])]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink()).partition(":[")[0]
    except OSError:
        return ""


def _threads() -> dict[str, Any]:
    import torch
    from threadpoolctl import threadpool_info

    pools = sorted((pool["prefix"], pool["num_threads"]) for pool in threadpool_info())
    return {
        "pools": pools,
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "cuda": torch.cuda.is_initialized(),
    }


def _constants() -> dict[str, str]:
    """All plain values and paths in the libraries' modules."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in LIBRARIES:
            for attribute, value in vars(module).items():
                if not attribute.startswith("__") and isinstance(value, int | str | Path | None):
                    found[f"{name}.{attribute}"] = repr(value)
    return found


if __name__ == "__main__":
    run_stage(main)
