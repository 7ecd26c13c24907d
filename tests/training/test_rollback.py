"""`on_non_finite: rollback`, by trainings that really diverge: a learning rate of 1e38."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.contract.failures import FailureCode, StageError
from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import CheckpointSaved, Metric, Notice, StageEvent
from tests.training.support.jobs import (
    ROLLBACK,
    Job,
    Killed,
    Recorder,
    TinyObjective,
    at_checkpoint,
    rollbacks,
    run,
)
from worker.stages.base import Stopped
from worker.training import rollback
from worker.training.optim import lr_schedulers
from worker.training.plan import Plan
from worker.training.progress import TrainingProgress


class TestRollback:
    def test_to_the_start_with_the_lower_learning_rate(self, make_job: Callable[..., Job]) -> None:
        """Then it is the training that had this learning rate from the start."""
        plain = {"max_steps": 8, "max_grad_norm": 0.0, "learning_rate": 0.01}
        _, expected = run(make_job(**plain, save_strategy="no").request())
        result, recorder = run(make_job(**ROLLBACK).request())
        assert recorder.checkpoint_steps() == [0, 3, 6, 8]
        [rollback] = rollbacks(recorder)
        bad_step = rollback.pop("step")
        assert bad_step in (2, 3)
        metrics = [(event.step, event.is_remade) for event in recorder.of(Metric)]
        assert metrics[: bad_step - 1] == [(step, False) for step in range(1, bad_step)]
        assert metrics[bad_step - 1 :] == [(step, step <= bad_step) for step in range(1, 9)]
        assert rollback == {"restored_step": 0, "learning_rate_factor": 1e-40, "rollbacks": 1}
        last = {step: recorder.train_values("loss")[step] for step in range(1, 9)}
        assert last == pytest.approx(expected.train_values("loss"), rel=1e-5)
        assert recorder.train_values("learning_rate")[4] == pytest.approx(0.01 * 5 / 8)
        assert result.steps == 8

    def test_to_a_later_checkpoint(self, make_job: Callable[..., Job]) -> None:
        """Warm-up from nothing: the first step's weights are good, the second's overflow."""
        options = {**ROLLBACK, "save_steps": 1, "warmup_steps": 8, "max_steps": 4}
        options |= {"learning_rate": 8e39, "rollback_learning_rate_factor": 1e-42}
        _, recorder = run(make_job(**options).request())
        assert recorder.checkpoint_steps() == [0, 1, 2, 3, 4]
        assert [
            (rollback["step"], rollback["restored_step"]) for rollback in rollbacks(recorder)
        ] == [(2, 1)]
        assert recorder.train_values("learning_rate")[4] == pytest.approx(3e-3)

    def test_not_unless_the_job_asks_for_it(self, make_job: Callable[..., Job]) -> None:
        """Although there is a checkpoint."""
        options = {**ROLLBACK, "on_non_finite": "fail", "save_steps": 1, "warmup_steps": 8}
        options |= {"max_steps": 4, "learning_rate": 8e39}
        del options["rollback_learning_rate_factor"]
        recorder = Recorder()
        with pytest.raises(StageError, match="the last good checkpoint is"):
            run(make_job(**options).request(), recorder)
        assert rollbacks(recorder) == []

    def test_twice_to_the_same_checkpoint(self, make_job: Callable[..., Job]) -> None:
        """Which knows of neither: both factors count."""
        options = {**ROLLBACK, "save_steps": 8, "rollback_learning_rate_factor": 1e-20}
        _, recorder = run(make_job(**options).request())
        assert [rollback["restored_step"] for rollback in rollbacks(recorder)] == [0, 0]
        assert [rollback["learning_rate_factor"] for rollback in rollbacks(recorder)] == [
            1e-20,
            1e-40,
        ]
        assert recorder.train_values("learning_rate")[8] == pytest.approx(0.01 / 8)

    def test_to_a_checkpoint_that_was_made_after_a_rollback(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has the first factor in it: only the second one is applied."""
        recorder, original = Recorder(), TinyObjective.loss_sum

        def loss_sum(self: TinyObjective, model: Any, batch: Any) -> torch.Tensor:
            times, saved = len(rollbacks(recorder)), recorder.checkpoint_steps()
            fails = times == 0 or (times == 1 and 3 in saved)
            return original(self, model, batch) * (torch.nan if fails else 1.0)

        monkeypatch.setattr(TinyObjective, "loss_sum", loss_sum)
        options = {"learning_rate": 0.08, "rollback_learning_rate_factor": 0.5, "async_save": False}
        run(make_job(**ROLLBACK | options).request(), recorder)
        assert [rollback["restored_step"] for rollback in rollbacks(recorder)] == [0, 3]
        assert [rollback["learning_rate_factor"] for rollback in rollbacks(recorder)] == [0.5, 0.5]
        assert recorder.train_values("learning_rate")[8] == pytest.approx(0.08 / 8 * 0.25)

    @pytest.mark.parametrize("killed", ["before a checkpoint", "after one"])
    def test_a_resumed_training_goes_the_same_way(
        self, make_job: Callable[..., Job], killed: str
    ) -> None:
        whole, recorder = run(make_job(**ROLLBACK).request())
        job, first = make_job(**ROLLBACK), Recorder()

        def after_the_rollback(event: StageEvent) -> bool:
            return isinstance(event, Metric) and event.step == 2 and bool(rollbacks(first))

        first.kill_after = after_the_rollback if killed.startswith("before") else at_checkpoint(6)
        with pytest.raises(Killed):
            run(job.request(1), first)
        newest = first.of(CheckpointSaved)[-1]
        assert newest.step == (0 if killed.startswith("before") else 6)
        resumed, again = run(job.request(2, resume_from=job.workspace / newest.path))
        assert resumed.weights_sha256 == whole.weights_sha256
        assert len(rollbacks(again)) == (1 if killed.startswith("before") else 0)
        for name in ("loss", "learning_rate"):
            after = {s: v for s, v in recorder.train_values(name).items() if s > newest.step}
            assert again.train_values(name) == after

    def test_paused_after_a_rollback_it_still_replaces_the_numbers_reported_before(
        self, make_job: Callable[..., Job]
    ) -> None:
        job = make_job(**ROLLBACK)
        first = Recorder(stop_after=lambda _: bool(rollbacks(first)))
        with pytest.raises(Stopped):
            run(job.request(1), first)
        bad_step = rollbacks(first)[0]["step"]
        newest = first.of(CheckpointSaved)[-1]
        assert (newest.step, bad_step > 1) == (1, True)
        _, again = run(job.request(2, resume_from=job.workspace / newest.path))
        metrics = [(event.step, event.is_remade) for event in again.of(Metric)]
        assert metrics == [(step, step <= bad_step) for step in range(2, 9)]

    def test_it_is_bounded(self, make_job: Callable[..., Job]) -> None:
        options = {**ROLLBACK, "rollback_learning_rate_factor": 0.9, "non_finite_rollbacks": 2}
        recorder = Recorder()
        with pytest.raises(StageError, match=r"not finite at step \d, after 2 rollbacks") as caught:
            run(make_job(**options).request(), recorder)
        failure = caught.value.failure
        assert failure.code is FailureCode.NON_FINITE_LOSS
        good = recorder.of(CheckpointSaved)[-1].path
        assert failure.details["last_good_checkpoint"] == good
        assert failure.message.startswith("the loss or its gradient was not finite at step ")
        assert failure.message.endswith(f"after 2 rollbacks; the last good checkpoint is {good}")
        factors = [rollback["learning_rate_factor"] for rollback in rollbacks(recorder)]
        assert factors == pytest.approx([0.9, 0.81])

    def test_behind_the_halving_of_the_batch(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The checkpoint is of the larger batches: they are tried, and halved, again."""
        original = TinyObjective.loss_sum

        def loss_sum(self: TinyObjective, model: Any, batch: Any) -> torch.Tensor:
            if len(batch["input_ids"]) > 4:
                torch.empty(2**60, dtype=torch.uint8)
            return original(self, model, batch)

        monkeypatch.setattr(TinyObjective, "loss_sum", loss_sum)
        result, recorder = run(make_job(**ROLLBACK, on_oom="halve_batch").request())
        halved = [e for e in recorder.of(Notice) if e.message.startswith("Out of memory")]
        assert (len(halved), len(rollbacks(recorder)), result.steps) == (2, 1, 8)


@pytest.mark.parametrize("schedule", ["linear", "constant", "cosine", "reduce_lr_on_plateau"])
def test_a_scaled_schedule_stays_scaled(schedule: str) -> None:
    """Also after it is saved and restored, together with its optimizer."""

    def made() -> tuple[torch.optim.Optimizer, lr_schedulers.Schedule]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        by_metric = {"eval_strategy": "steps"} if schedule == "reduce_lr_on_plateau" else {}
        spec = TrainingSpec.model_validate(
            {"max_steps": 6, "lr_scheduler_type": schedule, **by_metric}
        )
        return optimizer, lr_schedulers.build(optimizer, Plan.from_spec(spec, 100))

    def rates(optimizer: torch.optim.Optimizer, scheduler: lr_schedulers.Schedule) -> list[float]:
        seen = []
        for _ in range(4):
            optimizer.step()
            scheduler.after_step()
            scheduler.after_evaluation(1.0)
            seen += [scheduler.learning_rate(), optimizer.param_groups[0]["lr"]]
        return seen

    plain = rates(*made())
    optimizer, scheduler = made()
    scheduler.scale(0.5)
    assert scheduler.learning_rate() == 0.05 == optimizer.param_groups[0]["lr"]
    restored_optimizer, restored = made()
    restored_optimizer.load_state_dict(optimizer.state_dict())
    restored.load_state_dict(scheduler.state_dict())
    expected = pytest.approx([rate / 2 for rate in plain])
    assert rates(optimizer, scheduler) == expected
    assert rates(restored_optimizer, restored) == expected


def test_a_loss_scale_just_at_its_lowest_is_still_searched() -> None:
    def found(scale: float) -> rollback.NonFinite | None:
        scaler = SimpleNamespace(get_scale=lambda: scale)
        state: Any = SimpleNamespace(
            tally=SimpleNamespace(first_bad_step=lambda: None),
            accelerator=SimpleNamespace(scaler=scaler),
            progress=TrainingProgress(step=7),
        )
        return rollback.in_loss(state)

    assert found(rollback.LOWEST_LOSS_SCALE) is None
    below = found(rollback.LOWEST_LOSS_SCALE / 2)
    what = "the gradient in float16, with the loss scaled by less than 1,"
    assert below == rollback.NonFinite(7, what)
