"""The base model of a finished adapter, with the configuration that it was trained with."""

import shutil
from pathlib import Path
from typing import Final

from service.contract.failures import FailureCode, StageError
from service.contract.peft import BASE_CONFIG_FOLDER

ADAPTER_CONFIG: Final = "adapter_config.json"
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"


def is_adapter(model_dir: Path) -> bool:
    return (model_dir / ADAPTER_CONFIG).is_file()


def assemble(model_dir: Path, base: Path, target: Path) -> Path:
    """`target`, with links to the base model's weights and the configuration in the adapter's
    folder. StageError if one of them is missing."""
    config = model_dir / BASE_CONFIG_FOLDER
    if not (model_dir / _ADAPTER_WEIGHTS).is_file() or not (config / "config.json").is_file():
        raise StageError(
            FailureCode.MODEL_NOT_FOUND,
            f"{model_dir} lacks {_ADAPTER_WEIGHTS} or {BASE_CONFIG_FOLDER}/config.json, which a "
            "finished adapter has",
        )
    shutil.rmtree(target, ignore_errors=True)  # of an earlier try that failed
    target.mkdir(parents=True)
    for path in base.glob("model*.safetensors*"):
        (target / path.name).symlink_to(path.resolve())
    for path in config.glob("*.json"):
        shutil.copy(path, target / path.name)
    return target
