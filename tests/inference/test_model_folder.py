"""The folder of a checkpoint, put together from its weights and the settings of its attempt."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.contract.failures import FailureCode, StageError
from service.contract.stage.prediction_events import TrainedModel
from worker.inference import model_folder


def checkpoint_of(tmp_path: Path, config: str, weights: dict[str, torch.Tensor]) -> TrainedModel:
    settings, checkpoint = tmp_path / "hub", tmp_path / "checkpoints" / "2"
    settings.mkdir()
    checkpoint.mkdir(parents=True)
    (settings / config).write_text("{}")
    save_file(weights, checkpoint / "model.safetensors")
    return TrainedModel(spec={}, folder=checkpoint, settings=[settings], base=None)


def test_a_whole_model(tmp_path: Path) -> None:
    trained = checkpoint_of(tmp_path, "config.json", {"a": torch.ones(1)})
    found = model_folder.of_trained(trained, tmp_path / "own")
    assert not (found / "config.json").is_symlink()
    assert (found / "model.safetensors").resolve() == trained.folder / "model.safetensors"


def test_the_weights_of_lora_get_the_names_that_peft_loads(tmp_path: Path) -> None:
    name = "base_model.model.q.lora_A.default.weight"
    trained = checkpoint_of(
        tmp_path, "adapter_config.json", {name: torch.ones(1), "base_model.b": torch.ones(1)}
    )
    found = model_folder.of_trained(trained, tmp_path / "own")
    assert list(load_file(found / "adapter_model.safetensors")) == [
        "base_model.model.q.lora_A.weight"
    ]


def test_more_than_lora_is_refused(tmp_path: Path) -> None:
    name = "base_model.model.score.modules_to_save.default.weight"
    trained = checkpoint_of(tmp_path, "adapter_config.json", {name: torch.ones(1)})
    with pytest.raises(StageError) as raised:
        model_folder.of_trained(trained, tmp_path / "own")
    assert raised.value.failure.code is FailureCode.INVALID_OPTION


def test_without_settings_it_is_not_found(tmp_path: Path) -> None:
    trained = TrainedModel(spec={}, folder=tmp_path, settings=[tmp_path], base=None)
    with pytest.raises(StageError) as raised:
        model_folder.of_trained(trained, tmp_path / "own")
    assert raised.value.failure.code is FailureCode.MODEL_NOT_FOUND
