"""What each process may import, looked at in a fresh one."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {line.partition(".")[0] for line in done.stdout.splitlines()}


class TestFreshProcess:
    @pytest.mark.parametrize(
        "module",
        ["service.api.app", "service.cli", "service.jobs.reconciler", "service.store.jobs"],
    )
    def test_the_control_plane_has_no_ml_stack(self, module: str) -> None:
        assert _imported_by(f"import {module}").isdisjoint(ML_STACK)

    def test_the_celery_process_has_no_torch(self) -> None:
        modules = _imported_by(
            "import worker.app, worker.run, worker.supervision.supervisor, worker.tracking.shipper"
        )
        assert modules.isdisjoint({"torch", "transformers", "accelerate", "datasets", "mlflow"})

    def test_the_contract_needs_only_pydantic(self) -> None:
        modules = _imported_by(
            "import service.contract.spec, service.contract.stages, service.contract.events"
        )
        assert modules.isdisjoint({"sqlalchemy", "celery", "fastapi", "redis", *ML_STACK})


class TestContracts:
    def test_import_linter_keeps_all_of_them(self) -> None:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout
