"""A peft adapter cannot be given as a base model."""

from pathlib import Path

from service.contract.failures import FailureCode
from tests.tasks.stages import job_of
from tests.training.support.jobs import fails_with


def test_an_adapter_is_not_a_whole_model(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    rows = {"test": [{"text": "a"}]}
    job = job_of(tmp_path, "text-classification", folder, rows, mode="predict")
    with fails_with(FailureCode.MODEL_NOT_FOUND, "holds a peft adapter without its base model"):
        job.prepare()
