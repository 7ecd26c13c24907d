"""Every task evaluates each of several validation sets as if it were the only one."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_t5, save_tiny_xlnet
from tests.tasks.stages import StagedJob, write_rows
from tests.training.support import scores
from worker.tasks import registry

WORDS = ["the report was written by Ada", "nobody knows who wrote it", "it was found in London"]


def question(number: int) -> dict[str, Any]:
    answer = {"text": ["was"], "answer_start": [WORDS[0].index("was")]}
    return {"id": str(number), "question": "what?", "context": WORDS[0], "answers": answer}


def text(number: int) -> str:
    return f"{WORDS[number % 3]} {number}"


# Task → (its parameters, a model, a row).
CASES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "question-answering": ({"max_seq_length": 64, "doc_stride": 8}, save_tiny_bert, question),
    "question-answering/beam-search": (
        {"max_seq_length": 64, "doc_stride": 8, "head": "beam-search"},
        save_tiny_xlnet,
        question,
    ),
    "causal-lm": ({"block_size": 8}, save_tiny_gpt2, lambda n: {"text": text(n)}),
    "masked-lm": ({"max_seq_length": 16}, save_tiny_bert, lambda n: {"text": text(n) * 2}),
    "text-classification": ({}, save_tiny_bert, lambda n: {"text": text(n), "label": n % 2}),
    "token-classification": (
        {},
        save_tiny_bert,
        lambda n: {"tokens": ["Ada", "wrote"], "tags": ["B-PER", "O"]},
    ),
    "summarization": (
        {"max_source_length": 16, "max_target_length": 8},
        lambda folder: save_tiny_t5(folder, WORDS * 3),
        lambda n: {"text": text(n), "summary": WORDS[n % 3]},
    ),
    "translation": (
        {"max_source_length": 16, "max_target_length": 8, "source_lang": "en", "target_lang": "de"},
        lambda folder: save_tiny_t5(folder, WORDS * 3),
        lambda n: {"source": text(n), "target": WORDS[n % 3]},
    ),
}


def test_no_task_is_left_out() -> None:
    only_predict = {"causal-lm/text-generation", "masked-lm/fill-mask"}
    assert set(CASES) == set(registry.REGISTRY) - only_predict


@pytest.mark.parametrize("name", CASES)
def test_each_set_has_the_numbers_that_it_has_alone(name: str, tmp_path: Path) -> None:
    parameters, save_model, row = CASES[name]
    low = write_rows(tmp_path / "low.jsonl", map(row, range(5)))
    high = write_rows(tmp_path / "high.jsonl", map(row, range(5, 12)))
    model = str(save_model(tmp_path / "model"))

    def metrics_with(validation: Any, home: Path) -> dict[str, float]:
        home.mkdir()
        body = {
            "task": {"type": name.split("/")[0], **parameters},
            "model": {"name_or_path": model},
            "dataset": {"source": "path", "train": low, "validation": validation},
            "training": {"max_steps": 1, "save_strategy": "no"},
            "resources": {"gpus": 0},
        }
        result, _ = StagedJob(home, body).train()
        return {f"eval_{name}": value for name, value in scores(result.metrics).items()}

    both = metrics_with({"low": low, "high": high}, tmp_path / "both")
    for each, path in (("low", low), ("high", high)):
        alone = metrics_with(path, tmp_path / each)
        assert alone
        named = {key.replace("eval_", f"eval_{each}_", 1): value for key, value in alone.items()}
        assert {key: both[key] for key in named} == named
    assert all(key.startswith(("eval_low_", "eval_high_")) for key in both)
