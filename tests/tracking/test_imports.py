"""What the tracker imports, checked in fresh processes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("processes")


def _modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


class TestFreshProcess:
    def test_importing_it_brings_neither_mlflow_nor_sql(self) -> None:
        assert _modules_after("import worker.tracking.trackers").isdisjoint(
            {"mlflow", "sqlalchemy"}
        )

    def test_using_it_brings_mlflow_but_no_torch(self) -> None:
        code = "from worker.tracking.trackers import *\nMlflowTracker('http://127.0.0.1:1')._client"
        modules = _modules_after(code)
        assert "mlflow" in modules
        assert modules.isdisjoint({"torch", "transformers", "accelerate", "datasets"})

    def test_publishing_brings_no_sql_and_no_torch(self) -> None:
        modules = _modules_after("import worker.stages.publish.stage")
        assert modules.isdisjoint({"sqlalchemy", "celery", "redis", "torch", "mlflow"})
