"""Every task evaluates each of several validation sets as if it were the only one."""

from pathlib import Path
from typing import Any

import pytest

from tests.tasks.samples import CASES
from tests.tasks.stages import job_of, write_rows
from tests.training.support import scores
from worker.tasks import registry


def test_no_task_is_left_out() -> None:
    only_predict = {"causal-lm/text-generation", "masked-lm/fill-mask", "chat/text-generation"}
    only_predict |= {"preference/text-generation"}
    assert set(CASES) == set(registry.REGISTRY) - only_predict


@pytest.mark.parametrize("name", CASES)
def test_each_set_has_the_numbers_that_it_has_alone(name: str, tmp_path: Path) -> None:
    parameters, save_model, row = CASES[name]
    low = write_rows(tmp_path / "low.jsonl", map(row, range(5)))
    high = write_rows(tmp_path / "high.jsonl", map(row, range(5, 12)))
    model = save_model(tmp_path / "model")

    def metrics_with(validation: Any, home: Path) -> dict[str, float]:
        task = {"type": name.split("/")[0], **parameters}
        dataset = {"train": low, "validation": validation}
        options = {"max_steps": 1, "save_strategy": "no"}
        result, _ = job_of(home, task, model, dataset, options).train()
        return {f"eval_{name}": value for name, value in scores(result.metrics).items()}

    both = metrics_with({"low": low, "high": high}, tmp_path / "both")
    for each, path in (("low", low), ("high", high)):
        alone = metrics_with(path, tmp_path / each)
        assert alone
        named = {key.replace("eval_", f"eval_{each}_", 1): value for key, value in alone.items()}
        assert {key: both[key] for key in named} == named
    assert all(key.startswith(("eval_low_", "eval_high_")) for key in both)
