"""The environment of a stage's process, and the secrets that it is given."""

import os
import site
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from service.contract.roles import DEFAULT_PROJECT
from service.contract.stage import project_cache
from service.contract.states import Stage
from service.settings import Settings
from service.system import child_environment, own_packages
from worker.processes import allocator
from worker.sandbox import layers, machine

# Of compilers: one job's code must not run in another's, so each stage has its own.
_SHARED_CACHES: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
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


def stage_environment(
    settings: Settings,
    stage: Stage,
    gpus: Sequence[str] = (),
    private: Path | None = None,
    project_id: str = DEFAULT_PROJECT,
) -> dict[str, str]:
    """The variables of the worker that a stage may have, and ours; no secrets.

    `gpus`: UUIDs of the GPUs that the stage may use; it sees no others. `private`: its own folder
    for temporary files, which is its home, too.
    """
    environment = child_environment.split(_given(settings, stage))[0] | _ours(gpus)
    environment |= own_packages.variables(environment, partial(_may_read, settings))
    own_home = str(project_cache.folder_of(settings.cache_dir, project_id) / project_cache.HF_HOME)
    # The default project shares the operator's, which no other project's stage may change.
    if project_id != DEFAULT_PROJECT or "HF_HOME" not in environment:
        environment["HF_HOME"] = own_home
    if settings.hub_endpoint is not None:
        environment["HF_ENDPOINT"] = settings.hub_endpoint
    environment = allocator.preloading(settings.malloc, _for_libraries(environment))
    if private is not None:
        environment |= {"TMPDIR": str(private), "HOME": str(private)}
    if stage is Stage.TRAIN:
        environment["HF_HUB_OFFLINE"] = "1"
    return environment


def stage_secrets(settings: Settings, stage: Stage) -> dict[str, str]:
    """What a stage receives, but not in its initial environment: the Hub's token and proxies whose
    URL has a password in `prepare` and `publish`, the token of the tracking server in `publish`,
    and such variables of the operator's."""
    secrets = child_environment.split(_given(settings, stage))[1]
    if settings.hub_token is not None and stage is not Stage.TRAIN:
        secrets["HF_TOKEN"] = settings.hub_token.get_secret_value()
    if stage is Stage.PUBLISH and settings.mlflow_token is not None:
        secrets["MLFLOW_TRACKING_TOKEN"] = settings.mlflow_token.get_secret_value()
    return secrets


def _given(settings: Settings, stage: Stage) -> dict[str, str]:
    """Of the worker's variables those that the stage receives in one way or the other."""
    allowed = child_environment.allowed(os.environ, settings.stage_env)
    proxies = child_environment.proxies(os.environ) if stage is not Stage.TRAIN else {}
    kept = allowed | proxies
    return {name: value for name, value in kept.items() if name not in _SHARED_CACHES}


def _may_read(settings: Settings, folder: Path) -> bool:
    """Whether a stage's view shows `folder` of PYTHONPATH. Of one that it does not show, the fork
    server could import a package whose remaining files the stage may not open."""
    shown = (*machine.installed(), *settings.sandbox_read)
    return not layers.used(settings) or any(
        folder.resolve().is_relative_to(each.resolve()) for each in shown
    )


def _ours(gpus: Sequence[str]) -> dict[str, str]:
    return {
        "PYTHONUNBUFFERED": "1",
        # Packages that are installed for the worker's user alone; HOME is another one in a stage.
        "PYTHONUSERBASE": site.getuserbase(),
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


def _for_libraries(environment: dict[str, str]) -> dict[str, str]:
    """`environment` with the defaults that it lacks. libgomp ignores OMP_WAIT_POLICY if there is a
    spin count, so none is added to an operator's policy."""
    own = dict(_LIBRARIES)
    if "OMP_WAIT_POLICY" in environment:
        del own[_SPINS]
    return own | environment
