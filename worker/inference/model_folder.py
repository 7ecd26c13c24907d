"""The folder of a model that answers predictions: a finished model, a checkpoint, or a base
model."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from service.contract.failures import FailureCode, StageError
from service.contract.spec.peft import BASE_CONFIG_FOLDER
from service.contract.spec.spec import JobSpec
from service.contract.stage.prediction_events import PredictorRequest, TrainedModel
from worker.base_model import checks
from worker.stages.prepare.model import fetch_model, locate_model
from worker.tasks import registry
from worker.tasks.base import Task

_WEIGHTS: Final = "model.safetensors"
_ADAPTER_CONFIG: Final = "adapter_config.json"
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"


@dataclass(frozen=True)
class ModelFolder:
    weights: Path
    """Of the model, or of an adapter's base model."""
    adapter: Path | None
    config: Any
    tokenizer: Any


def of_text_model(request: PredictorRequest) -> ModelFolder:
    """StageError if it cannot be used."""
    stage = request.stage
    if request.trained is None:
        task = registry.get(stage.spec.variant())
        found = fetch_model(stage, locate_model(stage), task, lambda _notice: None)
        return ModelFolder(found.folder, None, found.config, found.tokenizer)
    given = of_trained(request.trained, stage.attempt_dir)
    target = stage.attempt_dir / "base_model"
    return read(request.trained, given, target, registry.get(stage.spec.variant()), stage.spec)


def read(
    trained: TrainedModel, given: Path, target: Path, task: Task, spec: JobSpec
) -> ModelFolder:
    """Of `given`, the folder of `trained`. An adapter's base model is made in `target`."""
    weights, adapter = given, None
    if (given / _ADAPTER_CONFIG).is_file():
        assert trained.base is not None, "an adapter has a base model"
        weights, adapter = _with_links(given, trained.base, target), given
    config = checks.load_config(weights, str(given))
    tokenizer = checks.load_tokenizer(given, str(given), task, spec.task)
    return ModelFolder(weights, adapter, config, tokenizer)


def _with_links(adapter: Path, base: Path, target: Path) -> Path:
    """`target`, with links to the base model's weights and the configuration in the adapter's
    folder. StageError if one of them is missing."""
    config = adapter / BASE_CONFIG_FOLDER
    if not (adapter / _ADAPTER_WEIGHTS).is_file() or not (config / "config.json").is_file():
        raise StageError(
            FailureCode.MODEL_NOT_FOUND,
            f"{adapter} lacks {_ADAPTER_WEIGHTS} or {BASE_CONFIG_FOLDER}/config.json, which a "
            "finished adapter has",
        )
    shutil.rmtree(target, ignore_errors=True)  # of an earlier try that failed
    target.mkdir(parents=True)
    for path in base.glob("model*.safetensors*"):
        (target / path.name).symlink_to(path.resolve())
    for path in config.glob("*.json"):
        shutil.copy(path, target / path.name)
    return target


def of_trained(trained: TrainedModel, own: Path) -> Path:
    """A folder as `save_pretrained` writes it; of a checkpoint it is made in `own`, from links."""
    if not trained.settings:
        if not trained.folder.is_dir():
            raise StageError(FailureCode.MODEL_NOT_FOUND, "The files of the model were removed")
        return trained.folder
    described = ("config.json", _ADAPTER_CONFIG)
    for settings in trained.settings:
        if any((settings / name).is_file() for name in described):
            return _joined(settings, trained.folder, own / "checkpoint")
    raise StageError(
        FailureCode.MODEL_NOT_FOUND,
        "The checkpoint was written by a release that did not save a configuration with it",
    )


def _joined(settings: Path, checkpoint: Path, target: Path) -> Path:
    if target.is_dir():
        return target
    target.mkdir(parents=True)
    if not (checkpoint / _WEIGHTS).is_file():
        raise StageError(FailureCode.MODEL_NOT_FOUND, "The files of the checkpoint were removed")
    for path in settings.iterdir():  # only files that are not links are read
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        elif not path.name.endswith(".safetensors"):
            shutil.copy(path, target / path.name)
    if not (settings / _ADAPTER_CONFIG).is_file():
        (target / _WEIGHTS).symlink_to(checkpoint / _WEIGHTS)
    elif (checkpoint / _ADAPTER_WEIGHTS).is_file():
        (target / _ADAPTER_WEIGHTS).symlink_to(checkpoint / _ADAPTER_WEIGHTS)
    else:
        save_file(_as_peft_loads_them(checkpoint), target / _ADAPTER_WEIGHTS)
    return target


def _as_peft_loads_them(checkpoint: Path) -> dict[str, torch.Tensor]:
    """LoRA's weights of a checkpoint that was not made for the Hub: under the names in the model,
    with buffers of its base model. StageError for what is more than LoRA."""
    held = load_file(checkpoint / _WEIGHTS)
    if any(".modules_to_save." in name for name in held) or not any("lora_" in n for n in held):
        raise StageError(
            FailureCode.INVALID_OPTION,
            "The checkpoint holds an adapter that can be asked only when the job has finished",
            action="Ask the job's finished model, or promote the checkpoint.",
        )
    return {n.replace(".default", ""): value for n, value in held.items() if "lora_" in n}
