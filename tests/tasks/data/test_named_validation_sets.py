"""Every task evaluates each of several validation sets as if it were the only one, and scores a
test split that has labels as it does a validation split."""

from pathlib import Path
from typing import Any, Final

import pytest

from tests.tasks.samples import CASES
from tests.tasks.stages import job_of, write_rows
from tests.training.support.jobs import scores
from worker.tasks import registry

pytestmark = pytest.mark.usefixtures("trainings")

# One that scores rows, one that scores windows of rows, one that generates.
EVERY_TIME: Final = ("text-classification", "question-answering", "summarization")


def test_no_task_is_left_out() -> None:
    only_predict = {"causal-lm/text-generation", "masked-lm/fill-mask", "chat/text-generation"}
    only_predict |= {"preference/text-generation"}
    assert set(CASES) == set(registry.REGISTRY) - only_predict


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.heavy] * (name not in EVERY_TIME)) for name in CASES],
)
def test_each_set_has_the_numbers_that_it_has_alone(name: str, tmp_path: Path) -> None:
    """One of them as the only validation set, and the other as the test split."""
    parameters, save_model, row = CASES[name]
    low = write_rows(tmp_path / "low.jsonl", map(row, range(5)))
    high = write_rows(tmp_path / "high.jsonl", map(row, range(5, 12)))
    model = save_model(tmp_path / "model")

    def trained(home: Path, **splits: Any) -> dict[str, float]:
        task = {"type": name.split("/")[0], **parameters}
        options = {"max_steps": 1, "save_strategy": "no"}
        result, _ = job_of(home, task, model, {"train": low, **splits}, options).train()
        return result.metrics

    both = scores(trained(tmp_path / "both", validation={"low": low, "high": high}))
    alone = trained(tmp_path / "alone", validation=high, test=low)
    expected = {
        f"{each}_{key}": value
        for each, split in (("low", "test"), ("high", "eval"))
        for key, value in scores(alone, split).items()
    }
    assert both == expected
    assert both["low_loss"] > 0
    assert both["high_loss"] > 0
