"""Our losses and rewards are those of TRL 1.16, step by step, without TRL: `trl_losses.json` has
its numbers, which `python -m benchmarks.trl losses --record` wrote."""

import json
from pathlib import Path

import pytest

from tests.tasks.stages import StagedJob
from tests.tasks.trl import trl_cases

pytestmark = pytest.mark.usefixtures("trainings")

GOLDEN = json.loads(trl_cases.GOLDEN.read_text())


@pytest.mark.parametrize("name", list(trl_cases.CASES))
def test_each_step(name: str, tmp_path: Path) -> None:
    case = trl_cases.CASES[name]
    model = trl_cases.save_model(tmp_path / "model", case)
    job = StagedJob(tmp_path, trl_cases.body(case, model, tmp_path))
    _, recorder = job.train()
    for key in case.names:
        ours = list(recorder.train_values(key).values())
        assert ours == pytest.approx(GOLDEN[name][key], abs=1e-4), key
