"""The table of tasks on this CPU: task x {train, resume, evaluate, predict, adapter}."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from service.contract.stage.events import Metric
from service.contract.tasks.tasks import TASKS
from worker.doctor.check import Context, TorchView
from worker.doctor.checks import tasks, trainings
from worker.doctor.checks.tasks import ACTIONS, TABLE, Trial
from worker.doctor.jobs import FinishedStage, Jobs, StageFailedError
from worker.doctor.registry import CHECKS
from worker.doctor.runner import Examination

Of = Callable[[str], Trial]
# One task of each kind: windows of rows, plain text, a model that generates, batches of pairs. Each
# task's own numbers are tested in tests/tasks, its table before a release.
_EVERY_TIME: Final = {
    "train": {"question-answering", "causal-lm", "summarization", "preference"},
    "resume": {"summarization", "preference"},
    "adapter": {"question-answering", "causal-lm", "preference"},
    "evaluate": {"question-answering", "summarization", "preference"},
    "predict": {"question-answering", "summarization", "preference"},
}


def _cells() -> Iterator[Any]:
    for task, action in product(TABLE, ACTIONS):
        is_heavy = task not in _EVERY_TIME[action]
        yield pytest.param(task, action, marks=[pytest.mark.heavy] * is_heavy)


CELLS: Final = [*_cells()]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # golden numbers depend on how sums are split
        patch.setitem(tasks.TOLERANCES, "cpu", 1e-5)  # users' processors may round otherwise
        with Jobs(folder, Context(scratch=folder)) as jobs:
            yield jobs


@pytest.fixture(scope="module")
def trial(jobs: Jobs) -> Of:
    return cache(lambda task: Trial(task, jobs))


class TestTable:
    def test_it_has_every_task(self) -> None:
        assert set(TABLE) == set(TASKS)

    @pytest.mark.parametrize(("task", "action"), CELLS)
    def test_as_expected(self, trial: Of, task: str, action: str) -> None:
        assert trial(task).run(action) == ""

    def test_other_numbers_are_named(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = TABLE["reward"]
        changed = replace(plain, losses=tuple(1.001 * loss for loss in plain.losses))
        monkeypatch.setitem(TABLE, "reward", changed)
        monkeypatch.setattr(tasks, "ACTIONS", ("train", "evaluate"))  # the others are equal, above
        found = tasks.task(Context(scratch=Path(), name="reward"), jobs)
        assert (found.status, found.summary) == ("failed", "not as expected: train")
        assert found.reason.startswith("train: found {'losses': [0.66")
        assert "expected {'losses': [0.66" in found.reason

    def test_a_failed_stage_is_named(self, jobs: Jobs) -> None:
        body = jobs.body("text-classification", max_seq_length=4096)
        with pytest.raises(StageFailedError, match="the stage `prepare` ended with sequence_too_l"):
            jobs.train(body)

    def test_a_stage_at_its_limit_is_killed(self, jobs: Jobs) -> None:
        body = jobs.body("reward", max_length=47)
        jobs.deadline = 0.0
        try:
            with pytest.raises(StageFailedError, match="`prepare` was killed at its limit"):
                jobs.train(body)
        finally:
            jobs.deadline = float("inf")

    @pytest.mark.usefixtures("processes")
    def test_a_crash_while_the_models_are_written_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torch.py").write_text("import os\nos.abort()\n")
        # Stages find only what a confined one would see.
        monkeypatch.setenv("FINETUNE_SANDBOX_READ", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        own = Jobs(tmp_path, Context(scratch=tmp_path))
        with own, pytest.raises(StageFailedError, match="writes tiny models ended with signal 6"):
            own.body("reward")


class TestTrainingChecks:
    # One for each way to be unlike the plain form: batches without padding, another section of the
    # spec, several processes. `make heavy` has all of them, in test_command.py.
    @pytest.mark.parametrize("name", ["packing", "lora-8-bit", "ranks-fsdp"])
    def test_has_the_losses_of_the_plain_form(
        self, jobs: Jobs, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As the doctor runs it."""
        monkeypatch.setattr(jobs, "deadline", float("inf"))  # the check's own ends with it
        [check] = [check for check in CHECKS if check.name == name]
        context = Context(scratch=Path(), torch=TorchView(version="2"))
        line = Examination([check], jobs.folder)._line(check, context, jobs)
        assert (line.check, line.finding.status) == (check, "ok"), line.finding


class _Scripted(Jobs):
    """Each training ends with the next of these losses."""

    def __init__(self, *ends: list[float]) -> None:
        super().__init__(Path(), Context(scratch=Path()))
        self.asked: list[dict[str, Any]] = []
        self._ends = iter(ends)

    def body(self, task: str, *_: Any, **__: Any) -> dict[str, Any]:
        return {"task": task}

    def train(self, body: Any, **training: Any) -> FinishedStage:
        self.asked.append({**body, **training})
        losses = enumerate(next(self._ends))
        events = [Metric(kind="train", step=step, values={"loss": loss}) for step, loss in losses]
        return FinishedStage(Path(), [*events], {})


class TestPairs:
    def find(self, name: str, *ends: list[float], gpus: int = 0) -> tuple[Any, _Scripted]:
        scripted = _Scripted(*ends)
        devices: Any = [{"capability": [9, 0]}] * gpus
        view = {"available": bool(gpus), "devices": devices, "version": "2"}
        context = Context.model_validate({"scratch": Path(), "name": name, "torch": view})
        return trainings.compare(context, scripted), scripted

    @pytest.mark.parametrize(
        ("name", "found"),
        [
            ("lora-4-bit", [5.0, 5.01]),  # it does not fall
            ("lora-4-bit", [5.0, 4.0]),
            ("ranks-ddp", [5.0, 4.91]),
            ("optimizers-paged", [5.0, float("nan")]),
        ],
    )
    def test_other_losses(self, name: str, found: list[float]) -> None:
        finding, _ = self.find(name, [5.0, 4.9], found)
        assert finding.status == "failed"
        assert f"losses {found}, of the plain form [5.0, 4.9]" in finding.reason
        assert finding.remedy

    def test_never_packed(self) -> None:
        assert self.find("packing", [5.0, 4.9], [5.0, 4.9])[0].status == "warning"

    def test_a_gpu_packs_in_bfloat16(self) -> None:
        _, scripted = self.find("packing", [5.0, 4.9], [5.05, 4.9], gpus=1)
        assert [each["precision"] for each in scripted.asked] == ["bf16", "bf16"]

    @pytest.mark.parametrize(
        ("gpus", "where", "share"),
        [(5, {"gpus": 4}, 2), (2, {"gpus": 2}, 4), (1, {"gpus": 0, "num_processes": 2}, 4)],
    )
    def test_processes_share_each_batch(self, gpus: int, where: dict[str, int], share: int) -> None:
        finding, scripted = self.find("ranks-fsdp", [5.0, 4.9], [5.0, 4.9], gpus=gpus)
        assert finding.status == "ok"
        sizes = [each["per_device_train_batch_size"] for each in scripted.asked]
        assert sizes == [8, share]
        assert scripted.asked[1]["resources"] == {**where, "strategy": {"type": "fsdp"}}
