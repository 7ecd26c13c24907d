"""`load_best_model_at_end`: the finished model is that of the best evaluation."""

import itertools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from safetensors.torch import load_file

from service.contract.stage.events import CheckpointSaved, Notice, StageEvent
from service.contract.stage.stages import TrainResult
from tests.training.support.jobs import (
    Job,
    Killed,
    Recorder,
    TinyObjective,
    at_checkpoint,
    rows,
    run,
)
from worker.storage import atomic_dir
from worker.training.evaluation import best_model
from worker.training.evaluation.best_model import Choice
from worker.training.objective import Evaluation
from worker.training.progress import BestMetric, TrainingProgress

VALIDATION = rows(6, seed=5)
# Far too fast after a good start: the losses fall and rise, and an early one is the lowest.
OPTIONS: dict[str, Any] = {
    "num_train_epochs": 4,
    "per_device_train_batch_size": 16,  # 3 steps an epoch
    "learning_rate": 4.0,
    "warmup_steps": 12,
    "logging_steps": 100,
    "dropout": 0.0,
    "validation": VALIDATION,
}
STEPS = 12


@dataclass
class Supervised(Recorder):
    """Prunes checkpoints by the rule of `save_total_limit`, as the supervisor does."""

    limit: int | None = None
    workspace: Path = Path()
    kept: dict[int, CheckpointSaved] = field(default_factory=dict)

    def send(self, event: StageEvent) -> None:
        if isinstance(event, CheckpointSaved):
            self._register(event)
        super().send(event)

    def _register(self, event: CheckpointSaved) -> None:
        self.kept[event.step] = event
        best = [step for step, saved in self.kept.items() if saved.best][-1:]
        for step in sorted(self.kept):
            if self.limit is None or len(self.kept) <= self.limit:
                return
            if step not in {*best, event.step}:
                atomic_dir.remove(self.workspace / self.kept.pop(step).path)


def supervised(job: Job, attempt: int = 1, resume_from: Path | None = None) -> Any:
    recorder = Supervised(limit=job.training.get("save_total_limit"), workspace=job.workspace)
    return run(job.request(attempt, resume_from), recorder)


def losses(recorder: Recorder) -> dict[int, float]:
    found = recorder.evaluations().items()
    return {step: values["eval_loss"] for step, values in found if step > 0}


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def same_weights(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """The tied embedding bears another name in each."""
    shared = set(one) & set(two)
    assert len(shared) >= len(two) - 1
    return all(bool((one[name] == two[name]).all()) for name in shared)


def assert_best(job: Job, result: TrainResult, found: dict[int, float]) -> None:
    """The finished model is that of the best of the evaluations `found`."""
    best = min(found, key=found.__getitem__)
    assert (result.best_step, result.model_step) == (best, best)
    assert result.best_metric == result.metrics["eval_loss"] == found[best]
    assert result.metric_for_best_model == "loss"
    [saved] = job.workspace.glob(f"attempts/*/checkpoints/{best}/")
    assert same_weights(weights_of(job.workspace / str(result.output_dir)), weights_of(saved))


class TestAsReported:
    def test_a_best_evaluation_between_two_saves(self, make_job: Callable[..., Job]) -> None:
        """The options of the report, in which the best evaluation was step 1."""
        job = make_job(
            eval_strategy="steps",
            eval_steps=1,
            save_steps=4,
            load_best_model_at_end=True,
            metric_for_best_model="loss",
            save_total_limit=1,
            learning_rate=0.03,
            num_train_epochs=4,
            seed=1,
            # What the model has learned at step 1 is what it is asked; then it unlearns that.
            train=rows(48, seed=1),
            validation=[{"input_ids": [7] * 12}],
            max_grad_norm=0.0,
            optim="adamw_torch",
        )
        result, recorder = supervised(job)
        found = losses(recorder)
        assert result.steps == 24
        best = min(found, key=found.__getitem__)
        assert best % 4, "or the report's situation is not this one"
        assert_best(job, result, found)
        assert set(recorder.kept) == {best, 24}
        [notice] = [event for event in recorder.of(Notice) if "finished model" in event.message]
        assert notice.message == (
            f"The finished model is that of step {best} (`loss`: {found[best]}), the best "
            "evaluation"
        )
        assert notice.data == {
            "step": best,
            "metric_for_best_model": "loss",
            "best_metric": found[best],
        }


INTERVALS = [(1, 4), (2, 2), (4, 1), (3, 2), (0.1, 5), (5, 0.3)]


def combinations() -> list[Any]:
    made = []
    for evaluation, save in itertools.product(("steps", "epoch"), ("steps", "epoch", "best")):
        both = evaluation == save == "steps"
        for eval_steps, save_steps in INTERVALS if both else INTERVALS[:1]:
            for limit in (None, 1, 2) if eval_steps == 1 else (1,):
                options = {
                    "eval_strategy": evaluation,
                    "save_strategy": save,
                    "eval_steps": eval_steps,
                    "save_steps": save_steps,
                    "save_total_limit": limit,
                }
                name = f"{evaluation} {eval_steps}, {save} {save_steps}, {limit}"
                # The limit and the moments have little to do with each other.
                marks = () if limit == 1 or (both and limit is None) else pytest.mark.heavy
                made.append(pytest.param(options, id=name, marks=marks))
    return made


class TestCombinations:
    @pytest.mark.parametrize("options", combinations())
    def test_the_best_evaluation_is_the_finished_model(
        self, make_job: Callable[..., Job], options: dict[str, Any]
    ) -> None:
        job = make_job(**OPTIONS, **options, load_best_model_at_end=True)
        result, recorder = supervised(job)
        found = losses(recorder)
        assert min(found, key=found.__getitem__) < STEPS, found
        assert_best(job, result, found)
        limit = options["save_total_limit"]
        assert limit is None or len(recorder.kept) <= max(limit, 2)

    @pytest.mark.parametrize(
        ("evaluation", "save"),
        [
            *(("no", "no"), ("steps", "steps"), ("epoch", "epoch"), ("steps", "no")),
            pytest.param("no", "steps", marks=pytest.mark.heavy),
            pytest.param("no", "epoch", marks=pytest.mark.heavy),
            pytest.param("steps", "epoch", marks=pytest.mark.heavy),
            pytest.param("epoch", "no", marks=pytest.mark.heavy),
            pytest.param("epoch", "steps", marks=pytest.mark.heavy),
        ],
    )
    def test_without_the_option_it_is_the_last(
        self, make_job: Callable[..., Job], evaluation: str, save: str
    ) -> None:
        job = make_job(
            **{**OPTIONS, "num_train_epochs": 2},
            eval_strategy=evaluation,
            eval_steps=1,
            save_strategy=save,
            save_steps=4,
            save_total_limit=1,
            metric_for_best_model="loss",
        )
        result, recorder = supervised(job)
        assert (result.model_step, result.steps) == (6, 6)
        assert not [event for event in recorder.of(Notice) if "finished model" in event.message]
        found = losses(recorder)
        assert result.metrics["eval_loss"] == found[6]
        if evaluation == "no":
            assert (result.best_step, result.best_metric) == (None, None)
        else:
            best = min(found, key=found.__getitem__)
            assert (result.best_step, result.best_metric) == (best, found[best])
        assert recorder.checkpoint_steps() == {"no": [], "steps": [4, 6], "epoch": [3, 6]}[save]

    def test_early_stopping(self, make_job: Callable[..., Job]) -> None:
        job = make_job(
            **OPTIONS,
            eval_strategy="steps",
            eval_steps=1,
            save_steps=5,
            save_total_limit=1,
            load_best_model_at_end=True,
            early_stopping_patience=2,
        )
        result, recorder = supervised(job)
        found = losses(recorder)
        assert result.steps < STEPS
        assert result.best_step == result.steps - 2
        assert_best(job, result, found)

    def test_nothing_evaluated(self, make_job: Callable[..., Job]) -> None:
        job = make_job(
            **{**OPTIONS, "num_train_epochs": 1},
            eval_strategy="steps",
            eval_delay=100,
            load_best_model_at_end=True,
        )
        result, _ = supervised(job)
        assert (result.best_step, result.best_metric, result.model_step) == (None, None, 3)


class TestResumed:
    OPTIONS: dict[str, Any] = {  # noqa: RUF012
        **OPTIONS,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 4,
        "load_best_model_at_end": True,
    }

    def test_killed_after_any_event_it_chooses_the_same(self, make_job: Callable[..., Job]) -> None:
        """Also after an evaluation whose checkpoint is not written yet."""
        whole, recorder = supervised(make_job(**self.OPTIONS, save_total_limit=1))
        best = whole.best_step
        assert best is not None
        assert best not in (4, 8, 12)

        def evaluated(step: int) -> Callable[[StageEvent], bool]:
            return lambda event: (
                getattr(event, "kind", None) == "eval" and getattr(event, "step", None) == step
            )

        for kill_after in (evaluated(best), at_checkpoint(best), evaluated(best + 1)):
            job = make_job(**self.OPTIONS, save_total_limit=1)
            first = Supervised(limit=1, workspace=job.workspace, kill_after=kill_after)
            with pytest.raises(Killed):
                run(job.request(1), first)
            newest = max(first.kept, default=None)
            resume_from = job.workspace / first.kept[newest].path if newest else None
            second = Supervised(limit=1, workspace=job.workspace, kept=first.kept)
            result, _ = run(job.request(2, resume_from), second)
            assert_best(job, result, losses(recorder))
            assert result.weights_sha256 == whole.weights_sha256
            if newest is not None and newest >= best:
                assert not any(event.best for event in second.of(CheckpointSaved))

    def interrupted(self, job: Job, step: int) -> Path:
        with pytest.raises(Killed):
            run(job.request(1), Recorder(kill_after=at_checkpoint(step)))
        return job.checkpoint(step)

    @pytest.mark.parametrize("damage", ["removed", "flipped"])
    def test_a_best_that_is_lost_gives_way_to_the_next(
        self, make_job: Callable[..., Job], damage: str
    ) -> None:
        job = make_job(**self.OPTIONS)
        whole, recorder = supervised(job)
        found = losses(recorder)
        assert whole.best_step is not None
        last = job.checkpoint(STEPS)
        lost = last.with_name(str(whole.best_step))
        if damage == "removed":
            shutil.rmtree(lost)
        else:
            content = bytearray((lost / "model.safetensors").read_bytes())
            content[-1] ^= 1
            (lost / "model.safetensors").write_bytes(content)
        result, again = supervised(job, 2, last)
        left = {step: found[step] for step in recorder.kept if step != whole.best_step}
        assert_best(job, result, left)
        [notice] = [event for event in again.of(Notice) if "finished model" in event.message]
        assert notice.data["step"] == result.best_step
        assert notice.message.endswith(
            f"the best evaluation was at step {whole.best_step} ({found[whole.best_step]}), "
            "which has no readable checkpoint"
        )


def reporting(monkeypatch: pytest.MonkeyPatch, values: Callable[[float], dict[str, float]]) -> None:
    """Evaluations report `values` of their loss, too."""
    evaluate = TinyObjective.evaluate

    def with_more(*arguments: Any) -> Evaluation | None:
        found = evaluate(*arguments)
        return found and replace(found, metrics=found.metrics | values(found.metrics["loss"]))

    monkeypatch.setattr(TinyObjective, "evaluate", with_more)


class TestDirection:
    def test_a_lower_perplexity_is_better(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reporting(monkeypatch, lambda loss: {"perplexity": math.exp(loss)})
        job = make_job(
            max_steps=6,
            eval_strategy="steps",
            eval_steps=2,
            load_best_model_at_end=True,
            metric_for_best_model="perplexity",
            early_stopping_patience=1,
            validation=VALIDATION,
        )
        result, recorder = supervised(job)
        found = losses(recorder)
        assert found[2] > found[4] > found[6]
        assert (result.steps, result.best_step, result.model_step) == (6, 6, 6)
        assert result.best_metric == pytest.approx(math.exp(found[6]), rel=1e-12)


class TestNotANumber:
    OPTIONS: ClassVar[dict[str, Any]] = {
        "max_steps": 6,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 3,
        "load_best_model_at_end": True,
        "metric_for_best_model": "accuracy",
        "validation": VALIDATION,
    }
    FIRST = (
        "`accuracy` was not a number at step 1: such an evaluation is never the best, and counts "
        "as one without improvement"
    )

    def test_no_evaluation_is_the_best(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reporting(monkeypatch, lambda loss: {"accuracy": math.nan})
        result, recorder = supervised(make_job(**self.OPTIONS))
        assert (result.best_step, result.best_metric, result.model_step) == (None, None, 6)
        assert [e.message for e in recorder.of(Notice) if "accuracy" in e.message] == [
            self.FIRST,
            "The finished model is that of the last step, 6: `accuracy` was not a number in any "
            "evaluation, so none is the best",
        ]
        assert not any(saved.best for saved in recorder.of(CheckpointSaved))

    def test_patience_counts_and_is_reported(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reporting(monkeypatch, lambda loss: {"accuracy": math.nan})
        job = make_job(**self.OPTIONS, early_stopping_patience=2)
        result, recorder = supervised(job)
        assert (result.steps, result.best_step) == (2, None)
        assert [e.message for e in recorder.of(Notice) if "accuracy" in e.message][:2] == [
            self.FIRST,
            "Stopped early at step 2: `accuracy` was not a number in any of 2 evaluations",
        ]

    def test_one_number_is_the_best(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = itertools.count()
        values = dict(enumerate([math.nan, math.nan, 0.25, math.nan]))  # the first: the baseline
        reporting(monkeypatch, lambda loss: {"accuracy": values.get(next(seen), math.nan)})
        result, recorder = supervised(make_job(**self.OPTIONS))
        assert (result.best_step, result.best_metric, result.model_step) == (2, 0.25, 2)
        assert [e.message for e in recorder.of(Notice) if "accuracy" in e.message] == [
            self.FIRST,
            "The finished model is that of step 2 (`accuracy`: 0.25), the best evaluation",
        ]


class TestChoice:
    @pytest.fixture
    def best(self, make_job: Callable[..., Job]) -> BestMetric:
        return BestMetric(make_job(metric_for_best_model="accuracy").spec().training)

    def saved(self, workspace: Path, step: int, **progress: Any) -> Path:
        folder = workspace / "attempts" / "1" / "checkpoints" / str(step)
        with atomic_dir.writing(folder) as partial:
            state = {"progress": {"step": step, **progress}}
            (partial / "progress.json").write_text(json.dumps(state))
        return folder

    def test_of_equals_the_earliest(self, tmp_path: Path, best: BestMetric) -> None:
        self.saved(tmp_path, 10, metric=0.5)
        folder = self.saved(tmp_path, 9, metric=0.5)
        self.saved(tmp_path, 8, metric=0.4)
        progress = TrainingProgress(step=12, metric=0.5)
        assert best_model.choose(best, progress, tmp_path) == Choice(9, 0.5, folder)

    def test_the_model_at_hand_may_be_the_best(self, tmp_path: Path, best: BestMetric) -> None:
        self.saved(tmp_path, 12, metric=0.7)
        progress = TrainingProgress(step=12, metric=0.7)
        assert best_model.choose(best, progress, tmp_path) == Choice(12, 0.7)

    def test_an_evaluation_that_is_not_a_number_is_not_chosen(
        self, tmp_path: Path, best: BestMetric
    ) -> None:
        self.saved(tmp_path, 2, metric=float("nan"))
        self.saved(tmp_path, 3, metric=None)
        self.saved(tmp_path, 4, best_step=1, best_metric=0.9)
        progress = TrainingProgress(step=5)
        assert best_model.choose(best, progress, tmp_path) == Choice(5, None)
        progress.metric = float("nan")
        chosen = best_model.choose(best, progress, tmp_path)
        assert chosen == Choice(5, None)
        progress.best_step, progress.best_metric = 1, 0.9
        assert best_model.described(chosen, "f1", progress) == (
            "The finished model is that of the last step, 5: the best evaluation was at step 1 "
            "(0.9), which has no readable checkpoint"
        )
