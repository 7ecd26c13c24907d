"""A retried job whose prepared data was removed is prepared as before, or not at all."""

import shutil
from pathlib import Path
from typing import Any

from service.contract.failures import FailureCode
from service.contract.stage.stages import PrepareResult
from tests.data.squad_sample import squad_file
from tests.stages.support import Run, spec


def prepared(ended: Any) -> PrepareResult:
    return PrepareResult.model_validate(ended.result)


class TestFiles:
    def test_the_same_data_has_the_same_address(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        shared = {"cache_dir": tmp_path / "cache"}
        first = prepared(run(spec(models / "tiny"), **shared))
        shutil.rmtree(first.prepared_dir)
        again = run(spec(models / "tiny"), prepared=first.model_dump(mode="json"), **shared)
        assert prepared(again) == first
        assert first.prepared_dir.is_dir()

    def test_other_data_fail(self, tmp_path: Path, run: Run, models: Path) -> None:
        data = tmp_path / "train.json"
        shutil.copy(squad_file("train"), data)
        body = spec(models / "tiny", train=str(data))
        roots = {"data_roots": [tmp_path], "cache_dir": tmp_path / "cache"}
        first = prepared(run(body, **roots))
        data.write_text(data.read_text() + " ")
        failure = run(body, prepared=first.model_dump(mode="json"), **roots).failure
        assert failure.code is FailureCode.DATA_CHANGED
        assert failure.details["before"] == first.data_fingerprint
        assert failure.details["now"] != first.data_fingerprint
        assert failure.action.startswith("Clone the job")
