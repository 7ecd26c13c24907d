"""The numbers that a training hands on: files, `trainer_state.json`, speed, operations."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from service.contract.stage.events import ArtifactWritten, Metric, StageEvent
from tests.training.support.jobs import Job, Killed, Recorder, at_checkpoint, rows, run
from tests.training.support.reference_trainer import TRAIN, VALIDATION, run_trainer
from worker.stages.base import Stopped
from worker.training import flops
from worker.training.distributed.ranks import Ranks, T
from worker.training.evaluation.validation import Validation
from worker.training.objective import Evaluation
from worker.training.progress import TrainingProgress
from worker.training.reporting import log_history
from worker.training.reporting.log_history import LogHistory

OPTIONS: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 16,  # 3 steps an epoch
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 4,
    "validation": rows(6, seed=5),
}
_TIMES = ("runtime", "per_second")


def results(job: Job, attempt: int = 1) -> dict[str, Any]:
    folder = job.workspace / "attempts" / str(attempt) / "results"
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def without_times(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in each.items() if not k.endswith(_TIMES)} for each in entries]


class TestFiles:
    def test_as_the_reference_scripts_name_them(self, make_job: Callable[..., Job]) -> None:
        job = make_job(**OPTIONS, test=rows(4, seed=6))
        result, recorder = run(job.request())
        files = results(job)
        state = files.pop("trainer_state.json")
        names = {event.name for event in recorder.of(ArtifactWritten)}
        assert {*files, "trainer_state.json"} < names
        assert files["all_results.json"] == {"epoch": 2.0, **result.metrics}
        parts = {
            name: {k: v for k, v in result.metrics.items() if k.startswith(prefixes)}
            for name, prefixes in (("train", ("train_", "total_flos")), ("eval", "eval_"))
        }
        parts["test"] = {k: v for k, v in result.metrics.items() if k.startswith("test_")}
        for name, values in parts.items():
            assert files[f"{name}_results.json"] == {"epoch": 2.0, **values}
        assert files["train_results.json"]["train_samples"] == 37
        assert files["eval_results.json"]["eval_samples"] == 6
        assert files["test_results.json"]["test_samples"] == 4
        assert files["test_results.json"]["test_loss"] > 0
        assert state["total_flos"] == result.metrics["total_flos"]

    def test_only_what_there_is(self, make_job: Callable[..., Job]) -> None:
        job = make_job(max_steps=1)
        run(job.request())
        assert results(job).keys() == {
            *("all_results.json", "train_results.json", "trainer_state.json")
        }


class TestTrainerState:
    def test_transformers_reads_it(self, make_job: Callable[..., Job]) -> None:
        job = make_job(
            **OPTIONS, load_best_model_at_end=True, include_num_input_tokens_seen="non_padding"
        )
        result, recorder = run(job.request())
        file = job.workspace / "attempts" / "1" / "results" / "trainer_state.json"
        state = transformers.TrainerState.load_from_json(str(file))
        assert (state.global_step, state.max_steps, state.num_train_epochs) == (6, 6, 2)
        assert (state.logging_steps, state.eval_steps, state.save_steps) == (1, 2, 4)
        assert (state.epoch, state.train_batch_size) == (2.0, 16)
        assert (state.best_global_step, state.best_metric) == (result.best_step, result.best_metric)
        assert state.best_model_checkpoint == f"attempts/1/checkpoints/{result.best_step}"
        assert state.num_input_tokens_seen == state.log_history[-1]["num_input_tokens_seen"] > 0
        names = ("eval_loss", "loss", "train_loss")
        kinds = [name for entry in state.log_history for name in names if name in entry]
        assert kinds == [
            *("eval_loss", "loss", "loss", "eval_loss", "loss", "loss", "eval_loss"),
            *("loss", "loss", "eval_loss", "train_loss"),
        ]
        losses = {e["step"]: e["loss"] for e in state.log_history if "loss" in e}
        assert losses == recorder.train_values("loss")
        evaluations = {e["step"]: e["eval_loss"] for e in state.log_history if "eval_loss" in e}
        assert evaluations == {s: v["eval_loss"] for s, v in recorder.evaluations().items()}

    @pytest.mark.usefixtures("sequential")
    def test_as_trainer_writes_it(self, make_job: Callable[..., Job], tmp_path: Path) -> None:
        options = {
            "max_steps": 6,
            "eval_strategy": "steps",
            "eval_steps": 0.5,
            "save_steps": 4,
            "logging_steps": 2,
            "metric_for_best_model": "loss",
            "save_strategy": "steps",
        }
        trainer, _ = run_trainer(tmp_path / "trainer", {"learning_rate": 1e-2, **options})
        job = make_job(train=TRAIN, validation=VALIDATION, dropout=0.0, **options)
        run(job.request())
        path = job.workspace / "attempts" / "1" / "results" / "trainer_state.json"
        state = transformers.TrainerState.load_from_json(str(path))
        for name in ("global_step", "max_steps", "num_train_epochs", "logging_steps", "eval_steps"):
            assert getattr(state, name) == getattr(trainer.state, name), name
        assert (state.save_steps, state.epoch) == (trainer.state.save_steps, trainer.state.epoch)
        assert state.total_flos == pytest.approx(trainer.state.total_flos)
        theirs = trainer.state.log_history
        mine = [entry for entry in state.log_history if entry["step"] > 0]
        assert [(e["step"], e["epoch"]) for e in mine] == [(e["step"], e["epoch"]) for e in theirs]
        for one, other in zip(mine, theirs, strict=True):
            assert set(other) - set(one) == set(), (one, other)
            for name in {"loss", "grad_norm", "eval_loss", "train_loss"} & set(other):
                assert one[name] == pytest.approx(other[name], rel=1e-3)

    @pytest.mark.parametrize("step", [2, 4])
    def test_of_a_resumed_training_it_is_the_same(
        self, make_job: Callable[..., Job], step: int
    ) -> None:
        """Killed after a checkpoint, or stopped before an evaluation that is due."""
        whole = make_job(**OPTIONS)
        run(whole.request())
        job, first = make_job(**OPTIONS), Recorder()
        if step == 4:
            first.kill_after = at_checkpoint(4)
        else:
            first.stop_after = logged(1)
        with pytest.raises((Killed, Stopped)):
            run(job.request(1), first)
        run(job.request(2, job.checkpoint(step)))
        one = results(whole)["trainer_state.json"]
        two = results(job, 2)["trainer_state.json"]
        assert without_times(one.pop("log_history")) == without_times(two.pop("log_history"))
        assert one == two


def logged(step: int) -> Callable[[StageEvent], bool]:
    return lambda event: isinstance(event, Metric) and event.kind == "train" and event.step == step


class TestLogHistory:
    def test_it_is_bounded_and_keeps_evaluations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_history, "LIMIT", 100)
        history = LogHistory()
        for step in range(1, 1001):
            history.add(step, step / 10, {"loss": 1.0})
            if step % 50 == 0:
                history.add(step, step / 10, {"eval_loss": 1.0})
            assert len(history.entries) <= 100
        evaluated = [entry["step"] for entry in history.entries if "eval_loss" in entry]
        assert evaluated == list(range(50, 1001, 50))
        steps = [entry["step"] for entry in history.entries]
        assert steps == sorted(steps)
        assert steps[0] == 1

    def test_many_evaluations_are_thinned_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_history, "LIMIT", 10)
        history = LogHistory()
        for step in range(100):
            history.add(step, 0.0, {"eval_loss": 1.0})
            assert len(history.entries) <= 10


class _Two(Ranks):
    """The first of two processes; the other has the same values."""

    def all_gather(self, value: T) -> list[T]:
        return [value, value]


class TestSpeed:
    def test_evaluations_are_timed(self, tmp_path: Path) -> None:
        ticks: Iterator[float] = iter([0.0, 2.0, 10.0, 14.0])
        validation = Validation(
            lambda split, _folder: Evaluation({"x": len(split)}),  # type: ignore[arg-type]
            TrainingProgress(),
            tmp_path,
            {"validation.easy": 10, "test": 9, "train": 100},
            batch_size=4,
            clock=lambda: next(ticks),
        )
        assert validation.run(0).speed == {
            "eval_easy_samples": 10,
            "eval_easy_runtime": 2.0,
            "eval_easy_samples_per_second": 5.0,
            "eval_easy_steps_per_second": 1.5,
        }
        assert validation.test().speed == {
            "test_samples": 9,
            "test_runtime": 4.0,
            "test_samples_per_second": 2.25,
            "test_steps_per_second": 0.75,
        }

    def test_numbers_while_it_trains(self, make_job: Callable[..., Job]) -> None:
        result, recorder = run(make_job(max_steps=3).request())
        flos = recorder.train_values("total_flos")
        assert 0 < flos[1] < flos[2] < flos[3] == result.metrics["total_flos"]
        assert all(
            2**26 < value < 2**40 for value in recorder.train_values("memory_rss_bytes").values()
        )

    def test_utilization_of_several_devices(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of two devices that make 10 operations a second each half as much is used as of one."""
        from worker.stages.train import outputs

        monkeypatch.setattr(flops, "peak_flops", lambda *_args: 10.0)
        original = outputs._summary

        def summary(training: Any) -> dict[str, float]:
            training.state.ranks = _Two(0, 2)
            numbers = original(training)
            training.state.ranks = Ranks()
            return numbers

        monkeypatch.setattr(outputs, "_summary", summary)
        result, _ = run(make_job(max_steps=1).request())
        made = result.metrics["total_flos"] / result.metrics["train_runtime"]
        assert result.metrics["train_mfu"] == pytest.approx(made / 20)
