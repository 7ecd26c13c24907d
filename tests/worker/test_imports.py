import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["worker.app", "worker.run", "worker.supervision.supervisor"])
def test_no_torch_in_the_celery_process(module: str) -> None:
    heavy = "{'torch', 'transformers', 'accelerate', 'datasets', 'mlflow'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
