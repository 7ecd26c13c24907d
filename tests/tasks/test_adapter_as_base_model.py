"""A peft adapter cannot be given as a base model."""

from pathlib import Path

import pytest

from service.contract.failures import FailureCode, StageError
from tests.tasks.stages import StagedJob, write_rows


def test_an_adapter_is_no_whole_model(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    rows = write_rows(tmp_path / "test.jsonl", [{"text": "a"}])
    body = {
        "mode": "predict",
        "task": "text-classification",
        "model": {"name_or_path": str(folder)},
        "dataset": {"source": "path", "test": rows},
    }
    with pytest.raises(StageError, match="holds a peft adapter without its base model") as caught:
        StagedJob(tmp_path, body).prepare()
    assert caught.value.failure.code is FailureCode.MODEL_NOT_FOUND
