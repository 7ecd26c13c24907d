"""Every task predicts a test split that has no labels; test_named_validation_sets.py scores one
that has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.contract.stage.stages import TrainResult
from tests.tasks.samples import CASES, question
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import scores

# What a row is without its label.
INPUTS = {"id", "question", "context", "text", "tokens", "source", "prompt", "chosen"}


def trained(
    name: str, home: Path, validation: list[Any], test: list[Any], **task: Any
) -> tuple[TrainResult, StagedJob]:
    parameters, save_model, row = CASES[name]
    task = {"type": name.split("/")[0], **parameters, **task}
    dataset = {"train": [*map(row, range(5))], "validation": validation, "test": test}
    options = {"max_steps": 1, "save_strategy": "no"}
    job = job_of(home, task, save_model(home / "model"), dataset, options)
    result, _ = job.train()
    return result, job


# Language models need none, and without a second answer there is nothing to compare.
LABELLED = [
    pytest.param(name, marks=pytest.mark.heavy) if name == "translation" else name
    for name in CASES
    if not name.endswith("-lm") and name != "preference"
]


@pytest.mark.parametrize("name", LABELLED)
def test_without_labels_it_is_predicted(name: str, tmp_path: Path) -> None:
    rows = [CASES[name][2](number) for number in range(4)]
    bare = [{key: value for key, value in row.items() if key in INPUTS} for row in rows]
    result, job = trained(name, tmp_path, rows, bare)
    assert scores(result.metrics, "test") == {}
    assert result.metrics["test_samples"] == 4
    assert (job.workspace / "attempts/2/predictions/test/predictions.json").is_file()


def changed(key: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, key: value}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("text-classification", changed("label", -1)),  # as GLUE hides them
        pytest.param("text-classification", changed("label", None), marks=pytest.mark.heavy),
        ("text-classification", changed("label", {"no": "label"})),
        pytest.param("token-classification", changed("tags", ["O"]), marks=pytest.mark.heavy),
        ("token-classification", changed("tags", ["B-ORG", "O"])),
        ("question-answering", changed("answers", {"text": [], "answer_start": []})),
        ("summarization", changed("summary", "")),
        pytest.param("translation", changed("target", None), marks=pytest.mark.heavy),
    ],
)
def test_one_label_that_is_unknown_leaves_it_without_scores(
    name: str, change: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    rows = [CASES[name][2](number) for number in range(4)]
    result, _ = trained(name, tmp_path, rows, [*rows[:3], change(rows[3])])
    assert scores(result.metrics, "test") == {}


@pytest.mark.parametrize(("answered", "scored"), [(1, True), (0, False)])
def test_questions_that_may_have_no_answer(tmp_path: Path, answered: int, scored: bool) -> None:
    """SQuAD v2: a question without an answer is a label, too, if others have one."""
    none: dict[str, list[Any]] = {"text": [], "answer_start": []}
    rows = [question(number) for number in range(4)]
    test = [*rows[:answered], *({**row, "answers": none} for row in rows[answered:])]
    result, _ = trained("question-answering", tmp_path, rows, test, version_2_with_negative=True)
    assert bool(scores(result.metrics, "test")) is scored
