"""A job of any task, through the real prepare and train stages in this process."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from service.contract.spec.spec import JobSpec
from service.contract.stage.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Stage
from tests.training.support.jobs import Recorder, run
from worker.stages.prepare import stage as prepare
from worker.tasks.base import PreparedSplit, load_splits


@dataclass
class StagedJob:
    """Each attempt is a request of its own; data and models may lie anywhere."""

    home: Path
    body: dict[str, Any]
    notices: list[Any] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.home / "job"

    @cached_property
    def prepared(self) -> PrepareResult:
        return self.prepare()

    def prepare(self) -> PrepareResult:
        """Without asking the Hub whether it may push: tests/stages/prepare/test_target.py does."""
        recorder = Recorder()
        request = self.request(Stage.PREPARE, attempt=1)
        request = request.model_copy(update={"spec": request.spec.model_copy(update={"hub": None})})
        self.notices = recorder.events
        self.prepared = prepare.main(request, recorder)  # type: ignore[arg-type]
        return self.prepared

    def train(
        self,
        attempt: int = 2,
        resume_from: Path | None = None,
        recorder: Recorder | None = None,
    ) -> tuple[TrainResult, Recorder]:
        _ = self.prepared
        return run(self.request(Stage.TRAIN, attempt, resume_from), recorder)

    @property
    def splits(self) -> dict[str, PreparedSplit]:
        return load_splits(self.prepared.prepared_dir)

    def output(self, result: TrainResult) -> Path:
        """The folder of the finished model."""
        return self.workspace / str(result.output_dir)

    def checkpoint(self, step: int) -> Path:
        """Of the attempt that trains."""
        return self.workspace / "attempts" / "2" / "checkpoints" / str(step)

    def predictions(self, name: str = "predictions.json") -> Any:
        """What is written by the attempt that trains."""
        return json.loads((self.workspace / "attempts" / "2" / "predictions" / name).read_text())

    def request(
        self, stage: Stage = Stage.TRAIN, attempt: int = 2, resume_from: Path | None = None
    ) -> StageRequest:
        attempt_dir = self.workspace / "attempts" / str(attempt)
        attempt_dir.mkdir(parents=True, exist_ok=True)
        return StageRequest(
            job_id="job-1",
            stage=stage,
            epoch=attempt,
            attempt=attempt,
            spec=JobSpec.model_validate(self.body),
            workspace=self.workspace,
            attempt_dir=attempt_dir,
            cache_dir=self.home / "cache",
            data_roots=[Path("/")],
            model_roots=[Path("/")],
            prepared=vars(self).get("prepared"),
            resume_from=resume_from,
        )


def job_of(
    home: Path,
    task: dict[str, Any] | str,
    model: Path | str,
    dataset: Mapping[str, Any],
    training: dict[str, Any] | None = None,
    **sections: Any,
) -> StagedJob:
    """A job on the CPU in the folder `home`, which need not exist; rows of a split in `dataset` are
    written there."""
    home.mkdir(parents=True, exist_ok=True)
    files = {
        name: write_rows(home / f"{name}.jsonl", given) if isinstance(given, list) else given
        for name, given in dataset.items()
    }
    body = {
        "task": task,
        "model": {"name_or_path": str(model)},
        "dataset": {"source": "path", **files},
        "training": training or {},
        "resources": {"gpus": 0},
    }
    return StagedJob(home, body | sections)


def assert_accumulates(
    make: Callable[..., StagedJob], size: int, part: int, names: Iterable[str], **near: Any
) -> Recorder:
    """Accumulated batches of `part` rows train as those of `size` do; what the latter logged."""
    recorders = []
    for attempt, rows in enumerate((size, part), start=2):
        batches = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": size // rows}
        recorders.append(make(**batches).train(attempt)[1])
    whole, accumulated = recorders
    for name in names:
        assert whole.train_values(name)
        assert accumulated.train_values(name) == pytest.approx(whole.train_values(name), **near)
    return whole


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON lines; returns the path as a spec names it."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
