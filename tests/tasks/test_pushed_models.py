"""What a push while training sends is the model as `save_pretrained` writes it, for every task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from service.contract.spec import JobSpec
from tests.support.models import (
    save_tiny_bert,
    save_tiny_gpt2,
    save_tiny_llama,
    save_tiny_t5,
    save_tiny_xlnet,
)
from tests.tasks.samples import LABELLED, QUESTION, TEXT
from tests.tasks.stages import StagedJob, write_rows
from worker.publishing import hub_repository
from worker.tasks import registry

PAIR = {"text": "the report of the water board", "summary": "the report"}


TAGGED = {"tokens": ["the", "board"], "tags": ["O", "B-ORG"]}


def tiny_t5(folder: Path) -> Path:
    return save_tiny_t5(folder, [PAIR["text"]] * 4)


# Tied weights, heads of their own, labels in the configuration, settings for generation.
CASES: list[tuple[dict[str, Any], Callable[[Path], Path], dict[str, Any]]] = [
    ({"type": "causal-lm", "block_size": 8}, save_tiny_gpt2, TEXT),
    ({"type": "masked-lm", "max_seq_length": 8}, save_tiny_bert, TEXT),
    ({"type": "summarization"}, tiny_t5, PAIR),
    (
        {"type": "chat", "chat_template": "chatml", "packing": "bfd"},
        save_tiny_llama,
        {"prompt": "the report", "completion": "was read"},
    ),
    ({"type": "question-answering", "head": "beam-search"}, save_tiny_xlnet, QUESTION),
    ({"type": "text-classification"}, save_tiny_bert, LABELLED),
    ({"type": "token-classification"}, save_tiny_bert, TAGGED),
]


@pytest.mark.parametrize(("task", "model", "row"), CASES)
def test_loads_as_the_finished_model_does(
    tmp_path: Path,
    task: dict[str, Any],
    model: Callable[[Path], Path],
    row: dict[str, Any],
) -> None:
    body = {
        "task": task,
        "model": {"name_or_path": str(model(tmp_path / "model"))},
        "dataset": {"source": "path", "train": write_rows(tmp_path / "rows.jsonl", [row] * 8)},
        "training": {"max_steps": 2, "save_steps": 2, "learning_rate": 1e-2, "use_cpu": True},
        "hub": {"model_id": "org/m", "strategy": "every_save"},
    }
    job = StagedJob(tmp_path, body)
    job.train()
    attempt = job.workspace / "attempts" / "2"
    pushed = hub_repository.model_files(
        hub_repository.settings_dir(attempt), attempt / "checkpoints" / "2"
    )
    folder, output = tmp_path / "pushed", attempt / "output"
    folder.mkdir()
    for name, path in pushed.items():
        (folder / name).write_bytes(path.read_bytes())
        if not name.endswith(".safetensors"):
            assert path.read_bytes() == (output / name).read_bytes(), name
    assert set(pushed) == {path.name for path in output.iterdir()}

    kind = registry.get(JobSpec.model_validate(body).task.variant()).auto_model()
    loaded, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    finished = kind.from_pretrained(output).state_dict()
    assert all(torch.equal(value, finished[name]) for name, value in loaded.state_dict().items())
