"""What each process may import, looked at in a fresh one."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
ML_STACK = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "mlflow",
    "numpy",
    "pandas",
    # Only what suggests trials or draws figures loads them, and late.
    "optuna",
    "plotly",
)


def _imported_by(statement: str) -> set[str]:
    """All modules, and the packages in which they are."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    modules = done.stdout.splitlines()
    return {*modules, *(module.partition(".")[0] for module in modules)}


class TestFreshProcess:
    def test_the_control_plane_has_no_ml_stack(self) -> None:
        """All of its processes in one: what none of them imports is not there."""
        modules = _imported_by("import service.api.app, service.cli.app, service.jobs.reconciler")
        assert modules.isdisjoint(ML_STACK)
        assert "service.store.jobs.state" in modules

    def test_the_celery_process_has_no_torch(self) -> None:
        modules = _imported_by(
            "import worker.app, worker.run, worker.supervision.supervisor, worker.tracking.shipper"
        )
        assert modules.isdisjoint({"torch", "transformers", "accelerate", "datasets", "mlflow"})

    def test_the_contract_needs_only_pydantic(self) -> None:
        modules = _imported_by(
            "import service.contract.spec.spec\n"
            "import service.contract.stage.stages, service.contract.stage.events"
        )
        assert modules.isdisjoint({"sqlalchemy", "celery", "fastapi", "redis", *ML_STACK})
