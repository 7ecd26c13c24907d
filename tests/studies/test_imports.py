import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"optuna", "torch", "scipy", "plotly", "pandas"}
SUGGEST = """
from service.contract.search.objectives import Objective
from service.contract.search.pruners import NoPruner
from service.contract.search.samplers import TpeSampler
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies.study import Study
space = {"a": Dimension(low=0.0, high=1.0)}
study = Study(space, [Objective(metric="loss")], TpeSampler(n_startup_trials=1), NoPruner(), [])
for number in range(3):
    study.end(study.ask().number, TrialState.COMPLETE, [1.0])
"""


def heavy_ones_after(code: str) -> set[str]:
    code = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.partition(".")[0] for name in done.stdout.split()} & HEAVY


class TestFreshProcess:
    def test_the_history_does_without(self) -> None:
        assert heavy_ones_after("import service.studies.history") == set()

    def test_suggestions_load_optuna_alone(self) -> None:
        assert heavy_ones_after(SUGGEST) <= {"optuna", "scipy"}
