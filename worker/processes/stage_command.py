"""The command line and the environment of a stage's process."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from service.contract.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from worker.processes import allocator
from worker.processes.fork_protocol import LAUNCHER

# The operator's settings and secrets: a stage needs none of them, or gets its own copy below.
# _MLFLOW_: mlflow's notes about the process that imported it, which do not apply to a stage.
_SCRUBBED_PREFIXES: Final = (
    *("FINETUNE_", "MLFLOW_", "_MLFLOW_", "CELERY_", "PG", "AWS_", "AZURE_", "GOOGLE_"),
)
_SCRUBBED: Final = frozenset(
    {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HF_TOKEN_PATH"}
)

_SPINS: Final = "GOMP_SPINCOUNT"
# Defaults that the operator can override; libraries read them when they are loaded.
_LIBRARIES: Final = {
    # oneDNN keeps its programs for this many shapes (its default: 1,024), a third of a megabyte
    # each. A step of 32 packed sequences needs 170; with fewer, each layer compiles its own.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    # How often a waiting thread checks before it sleeps. With libgomp's default of 300,000 the
    # waiting threads of one training occupy the cores that another needs; with 0 a training that
    # runs alone loses time whenever its threads wake up.
    _SPINS: "10000",
}


def stage_command(request: StageRequest, request_file: Path) -> list[str]:
    """With -P, because files in the working directory are data and must not be imported."""
    module, processes = f"worker.stages.{request.stage}", request.spec.resources.processes
    command = [module, str(request_file)]
    if request.stage is Stage.TRAIN and processes > 1:
        command = [LAUNCHER, str(processes), *command]
    return [sys.executable, "-P", "-m", *command]


def stage_environment(settings: Settings, stage: Stage, gpus: Sequence[str] = ()) -> dict[str, str]:
    """The worker's environment without its secrets; only `prepare` and `publish` get the Hub token.

    `gpus`: UUIDs of the GPUs that the stage may use; it sees no others.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _SCRUBBED and not name.startswith(_SCRUBBED_PREFIXES)
    }
    environment |= {
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Nor the token of the account that the worker runs under.
        "HF_TOKEN_PATH": os.devnull,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        # In the order of nvidia-smi, not the fastest first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # torch counts devices with NVML, which does not initialise CUDA.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    # Downloads go to our cache, unless the operator has set HF_HOME.
    environment.setdefault("HF_HOME", str(settings.cache_dir / "huggingface"))
    if settings.hub_endpoint is not None:
        environment["HF_ENDPOINT"] = settings.hub_endpoint
    environment = allocator.preloading(settings.malloc, _for_libraries(environment))
    if stage is Stage.TRAIN:
        return environment | {"HF_HUB_OFFLINE": "1"}
    if settings.hub_token is not None:
        environment["HF_TOKEN"] = settings.hub_token.get_secret_value()
    return environment


def _for_libraries(environment: dict[str, str]) -> dict[str, str]:
    """`environment` with the defaults that it lacks. libgomp ignores OMP_WAIT_POLICY if there is a
    spin count, so none is added to an operator's policy."""
    own = dict(_LIBRARIES)
    if "OMP_WAIT_POLICY" in environment:
        del own[_SPINS]
    return own | environment


def push_command(request_file: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "worker.stages.push", str(request_file)]


def push_environment(settings: Settings) -> dict[str, str]:
    """The environment of `publish`: with the token, without GPUs."""
    return stage_environment(settings, Stage.PUBLISH)
