"""The code in a model's card works."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.publishing.card_code import run_here
from tests.publishing.conftest import PREPARED, TRAINED, make_request
from tests.support.models import save_tiny_t5, save_tiny_xlnet
from worker.publishing import model_card


def run_usage(workspace: Path, model: Path, **spec: Any) -> str:
    """The output of the card's code, run on the model in `model`."""
    text = model_card.render(make_request(workspace, spec=spec), PREPARED, TRAINED)
    torch.manual_seed(0)
    return run_here(text, {"path/to/this/folder": model})


@pytest.mark.parametrize("task", ["summarization", "translation"])
def test_generated_texts(tmp_path: Path, task: str) -> None:
    text = "A long text. The report was written by Ada in 1843."
    model = save_tiny_t5(tmp_path / "model", [text], seed=4)
    parameters = {"type": task, "source_prefix": "do: ", "max_target_length": 7}
    # Six tokens after the start token: `max_target_length`.
    assert run_usage(tmp_path, model, task=parameters) == " ".join(["written"] * 6)


def test_beam_search(tmp_path: Path) -> None:
    model = save_tiny_xlnet(tmp_path / "model")
    parameters = {"type": "question-answering", "head": "beam-search"}
    answer = run_usage(tmp_path, model, task=parameters)
    assert answer
    assert answer in "The report was written by Ada in 1843."
