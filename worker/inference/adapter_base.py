"""The base model of a finished adapter, with the configuration that it was trained with."""

import json
import shutil
from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from service.contract.failures import FailureCode, StageError
from service.contract.inference import BaseModelSource
from service.contract.peft import BASE_CONFIG_FOLDER
from worker.base_model import files

ADAPTER_CONFIG: Final = "adapter_config.json"
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_WEIGHTS: Final = "model.safetensors"


def is_adapter(model_dir: Path) -> bool:
    return (model_dir / ADAPTER_CONFIG).is_file()


def assemble(model_dir: Path, source: BaseModelSource, cache_dir: Path, target: Path) -> Path:
    """`target`, with links to the base model's weights and the configuration in the adapter's
    folder. StageError if one of them is missing."""
    config = model_dir / BASE_CONFIG_FOLDER
    if not (model_dir / _ADAPTER_WEIGHTS).is_file() or not (config / "config.json").is_file():
        raise StageError(
            FailureCode.MODEL_NOT_FOUND,
            f"{model_dir} lacks {_ADAPTER_WEIGHTS} or {BASE_CONFIG_FOLDER}/config.json, which a "
            "finished adapter has",
        )
    if source.is_prepared:
        base = Path(source.name_or_path)
    else:
        base = _cached(source, cache_dir) or _fetched(source, cache_dir)
    shutil.rmtree(target, ignore_errors=True)  # of an earlier try that failed
    target.mkdir(parents=True)
    for path in base.glob("model*.safetensors*"):
        (target / path.name).symlink_to(path.resolve())
    for path in config.glob("*.json"):
        shutil.copy(path, target / path.name)
    return target


def _cached(source: BaseModelSource, cache_dir: Path) -> Path | None:
    """Downloaded before at this commit: needs no network."""
    if source.revision is None:
        return None
    try:
        folder = snapshot_download(
            source.name_or_path,
            revision=source.revision,
            cache_dir=cache_dir / "hub",
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder) if _has_weights(Path(folder)) else None


def _has_weights(folder: Path) -> bool:
    """Whether all of them are there: a download may have been interrupted."""
    if (folder / _WEIGHTS).is_file():
        return True
    try:
        index = json.loads((folder / f"{_WEIGHTS}.index.json").read_text(encoding="utf-8"))
        return all((folder / shard).is_file() for shard in set(index["weight_map"].values()))
    except (OSError, ValueError, LookupError):
        return False


def _fetched(source: BaseModelSource, cache_dir: Path) -> Path:
    located = files.locate(
        source.name_or_path,
        source.revision,
        roots=[Path("/")],
        setting="model.name_or_path",
        cache_dir=cache_dir,
    )
    return located.fetch([*located.settings(), *located.weights()])
