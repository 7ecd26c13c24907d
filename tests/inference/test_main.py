"""`python -m worker.inference`, as `finetune try` starts it."""

import os
import subprocess
import sys
from pathlib import Path

from service.contract.inference import Answers, InferenceRequest, Rows
from tests.support.factories import make_spec


def test_refuses_lines_one_by_one_in_any_locale(tmp_path: Path) -> None:
    request = InferenceRequest(
        spec=make_spec().model_dump(mode="json"),
        model_dir=tmp_path / "Größe",
        base_model=None,
        folder=tmp_path,
        cache_dir=tmp_path / "cache",
        use_gpu=False,
    )
    rows = Rows(rows=[{"question": "?", "context": "!"}])
    lines = [request.model_dump_json(), "no JSON", rows.model_dump_json()]
    done = subprocess.run(
        [sys.executable, "-m", "worker.inference"],
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    broken, missing = map(Answers.model_validate_json, done.stdout.splitlines())
    assert broken.failure is not None
    assert "ValidationError" in broken.failure.message
    assert missing.failure is not None
    assert "Größe" in missing.failure.message
