"""What a push while training sends is the model as `save_pretrained` writes it, for every task."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tasks.samples import CASES
from tests.tasks.stages import job_of
from worker.publishing import hub_repository
from worker.tasks import registry

pytestmark = pytest.mark.usefixtures("trainings")

# Tied weights, heads of their own, labels in the configuration, settings for generation.
NAMES = (
    *("causal-lm", "masked-lm", "summarization", "question-answering/beam-search"),
    *("text-classification", "token-classification"),
)


@pytest.mark.parametrize(
    ("name", "options"), [("chat", {"chat_template": "chatml"}), *((name, {}) for name in NAMES)]
)
def test_loads_as_the_finished_model_does(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    parameters, save_model, row = CASES[name]
    training = {"max_steps": 2, "save_steps": 2, "learning_rate": 1e-2}
    hub = {"model_id": "org/m", "strategy": "every_save"}
    task = {"type": name.split("/")[0], **parameters, **options}
    rows = {"train": [row(number) for number in range(8)]}
    job = job_of(tmp_path, task, save_model(tmp_path / "model"), rows, training, hub=hub)
    job.train()
    attempt = job.workspace / "attempts" / "2"
    pushed = hub_repository.model_files(
        hub_repository.settings_dir(attempt), attempt / "checkpoints" / "2"
    )
    folder, output = tmp_path / "pushed", attempt / "output"
    folder.mkdir()
    for file, path in pushed.items():
        (folder / file).write_bytes(path.read_bytes())
        if not file.endswith(".safetensors"):
            assert path.read_bytes() == (output / file).read_bytes(), file
    assert set(pushed) == {path.name for path in output.iterdir()}

    kind = registry.get(name).auto_model()
    loaded, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    finished = kind.from_pretrained(output).state_dict()
    assert all(torch.equal(value, finished[key]) for key, value in loaded.state_dict().items())
