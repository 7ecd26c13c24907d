"""worker.training.loop through the real train stage, on a tiny model."""

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from service.contract.failures import FailureCode, StageError
from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import CheckpointSaved, Notice, Progress
from tests.training.support.jobs import Job, Recorder, TinyObjective, rows, run
from worker.processes import allocator
from worker.training import loop
from worker.training.batches.rank_shares import Share
from worker.training.memory import auto_batch_size, usage
from worker.training.plan import Plan
from worker.training.progress import LossTally
from worker.training.run import TrainingRun

GOLDEN = [3.9130, 3.9052, 3.7957, 3.8603, 3.7768, 3.7952, 3.6070, 3.5659, 3.5487, 3.6525]


def failure_of(job: Job, recorder: Recorder | None = None) -> Any:
    with pytest.raises(StageError) as caught:
        run(job.request(), recorder)
    return caught.value.failure


class TestLosses:
    def test_ten_steps_have_these_losses(self, make_job: Callable[..., Job]) -> None:
        """With dropout; every change of order, masking, scaling or random numbers shows here."""
        _, recorder = run(make_job(max_steps=10, per_device_train_batch_size=4).request())
        assert list(recorder.train_values("loss").values()) == pytest.approx(GOLDEN, rel=2e-4)

    def test_bf16_is_near_and_not_the_same(self, make_job: Callable[..., Job]) -> None:
        losses = [
            run(make_job(max_steps=5, dropout=0.0, **changes).request())[1].train_values("loss")
            for changes in ({}, {"bf16": True})
        ]
        assert losses[0] != losses[1]
        assert losses[1] == pytest.approx(losses[0], rel=2e-2)

    def test_a_logged_loss_is_the_mean_since_the_last(self, make_job: Callable[..., Job]) -> None:
        _, each = run(make_job(max_steps=6).request())
        result, thirds = run(make_job(max_steps=6, logging_steps=3).request())
        losses = each.train_values("loss")
        expected = {
            3: sum(losses[step] for step in (1, 2, 3)) / 3,
            6: sum(losses[step] for step in (4, 5, 6)) / 3,
        }
        assert thirds.train_values("loss") == pytest.approx(expected, rel=1e-12)
        assert result.metrics["train_loss"] == pytest.approx(sum(losses.values()) / 6, rel=1e-12)


class TestWaiting:
    def test_the_device_is_waited_for_only_when_a_number_is_due(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[str] = []
        for name in ("total", "first_bad_step"):
            original = getattr(LossTally, name)

            def recorded(self: LossTally, name: str = name, original: Any = original) -> Any:
                read.append(name)
                return original(self)

            monkeypatch.setattr(LossTally, name, recorded)
        run(make_job(max_steps=12, logging_steps=6, save_strategy="no").request())
        # At steps 6 and 12, and once for the mean of the whole training.
        assert read == ["first_bad_step", "total", "first_bad_step", "total", "total"]


class TestAccumulation:
    def test_gradients_are_those_of_the_large_batch(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Uneven lengths: a mean of the batches' means would be wrong."""
        gradients: list[dict[str, torch.Tensor]] = []
        original = loop.train_step

        def step(training: TrainingRun, micro_batches: list[Share]) -> loop.StepResult | None:
            model = training.state.bare_model
            optimizer = training.state.optimizer

            def keep(*args: Any, **kwargs: Any) -> None:
                named = model.named_parameters()
                gradients.append({n: p.grad.clone() for n, p in named if p.grad is not None})

            monkeypatch.setattr(optimizer, "step", keep)
            return original(training, micro_batches)

        monkeypatch.setattr(loop, "train_step", step)
        for size, batches in ((8, 1), (2, 4)):
            options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": batches}
            with pytest.warns(UserWarning, match="lr_scheduler.step"):
                run(
                    make_job(
                        max_steps=1, dropout=0.0, max_grad_norm=0.0, save_strategy="no", **options
                    ).request()
                )
        large, accumulated = gradients
        assert large.keys() == accumulated.keys()
        for name, gradient in large.items():
            torch.testing.assert_close(accumulated[name], gradient, atol=1e-6, rtol=0)


class TestNonFinite:
    def test_it_names_the_step_and_the_last_good_checkpoint(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found at the save of step 6, without having looked at each step."""
        calls = iter(range(1, 100))
        original = TinyObjective.loss_sum

        def loss_sum(self: TinyObjective, model: Any, batch: Any) -> torch.Tensor:
            bad = torch.tensor(math.nan if next(calls) == 4 else 1.0)
            return original(self, model, batch) * bad

        monkeypatch.setattr(TinyObjective, "loss_sum", loss_sum)
        job, recorder = make_job(max_steps=9, save_steps=3, logging_steps=500), Recorder()
        failure = failure_of(job, recorder)
        assert failure.code is FailureCode.NON_FINITE_LOSS
        assert failure.details == {
            "step": 4,
            "last_good_checkpoint": "attempts/1/checkpoints/3",
        }
        assert recorder.checkpoint_steps() == [3]

    def test_a_real_divergence(self, make_job: Callable[..., Job]) -> None:
        recorder = Recorder()
        job = make_job(max_steps=30, learning_rate=1e38, save_steps=1, max_grad_norm=0.0)
        failure = failure_of(job, recorder)
        assert failure.code is FailureCode.NON_FINITE_LOSS
        assert failure.details["step"] <= 3
        assert failure.details["step"] == len(recorder.checkpoint_steps()) + 1

    def test_weights_that_overflow_are_not_saved(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = loop.train_step

        def step(training: TrainingRun, micro_batches: list[Share]) -> loop.StepResult | None:
            result = original(training, micro_batches)
            if training.state.progress.step == 2:
                with torch.no_grad():
                    next(training.state.bare_model.parameters())[0, 0] = math.inf
            return result

        monkeypatch.setattr(loop, "train_step", step)
        recorder = Recorder()
        failure = failure_of(make_job(max_steps=4, save_steps=1), recorder)
        assert failure.code is FailureCode.NON_FINITE_LOSS
        assert recorder.checkpoint_steps() == [1]


class TestOutOfMemory:
    @pytest.mark.parametrize(
        ("options", "advice"),
        [
            ({}, "lower `training.per_device_train_batch_size`"),
            (
                {"eval_strategy": "epoch", "per_device_eval_batch_size": 3},
                "shorten the sequences",
            ),
        ],
    )
    def test_a_real_allocation_that_fails(
        self,
        make_job: Callable[..., Job],
        monkeypatch: pytest.MonkeyPatch,
        options: dict[str, Any],
        advice: str,
    ) -> None:
        original = transformers.GPT2LMHeadModel.forward

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            torch.empty(2**60, dtype=torch.uint8)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", forward)
        validation = rows(7, length=11) if options else None
        failure = failure_of(
            make_job(max_steps=2, train=rows(9, length=13), validation=validation, **options)
        )
        assert failure.code is FailureCode.OUT_OF_MEMORY
        assert advice in failure.message
        # An evaluation is tried with ever smaller batches first.
        expected = (1, 11) if options else (8, 13)
        assert (failure.details["batch_size"], failure.details["longest_sequence"]) == expected
        assert 2**26 < failure.details["peak_bytes"] < 2**40

    @pytest.mark.parametrize(
        "error",
        [
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            torch.AcceleratorError("CUDA error: out of memory", 2),
        ],
    )
    def test_the_gpus_errors(self, error: RuntimeError) -> None:
        batch = usage.CurrentBatch()
        with (
            pytest.raises(StageError, match="out of memory"),
            usage.out_of_memory_explained(batch, "x"),
        ):
            raise error

    def test_the_memory_is_given_back_when_nothing_holds_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the exception is handled, its frames hold the tensors of the attempt."""
        held: list[weakref.ref[torch.Tensor]] = []
        found: list[object] = []

        def compute() -> torch.Tensor:
            activations = torch.zeros(3)
            held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError

        monkeypatch.setattr(
            auto_batch_size, "clear_device_cache", lambda **_: found.append(held[0]())
        )
        plan = Plan.from_spec(TrainingSpec(auto_find_batch_size=True), 8, 1)
        smaller: list[Plan] = []
        assert auto_batch_size.attempt(compute, plan, smaller.append) is None
        assert found == [None]
        assert [each.batch_size for each in smaller] == [plan.batch_size // 2]

    def test_on_a_gpu_the_peak_is_what_was_taken_of_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 << 30)
        assert usage.peak_bytes() == 3 << 30


class TestBestModel:
    OPTIONS: dict[str, Any] = {  # noqa: RUF012
        "max_steps": 6,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "learning_rate": 0.5,
        "warmup_steps": 6,
    }

    @pytest.mark.parametrize(
        ("metric", "greater", "better"),
        [
            (None, None, min),
            ("loss", None, min),
            ("eval_loss", True, max),
            ("accuracy", None, max),
        ],
    )
    def test_the_metric_chooses(
        self, make_job: Callable[..., Job], metric: str | None, greater: bool | None, better: Any
    ) -> None:
        job = make_job(
            **self.OPTIONS,
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model=metric,
            greater_is_better=greater,
            validation=rows(6, seed=5),
        )
        result, recorder = run(job.request())
        name = "eval_" + (metric or "loss").removeprefix("eval_")
        values = {s: v[name] for s, v in recorder.evaluations().items() if s > 0}
        best = better(values.values())
        assert result.metrics[name] == best
        assert result.best_step == next(step for step, value in values.items() if value == best)
        saved = {event.step: event for event in recorder.of(CheckpointSaved)}
        assert {step: event.metric for step, event in saved.items()} == values
        assert [s for s, event in saved.items() if event.best][-1] == result.best_step

    def test_save_strategy_best_keeps_only_improvements(self, make_job: Callable[..., Job]) -> None:
        job = make_job(**self.OPTIONS, save_strategy="best", validation=rows(6, seed=5))
        _, recorder = run(job.request())
        losses = {s: v["eval_loss"] for s, v in recorder.evaluations().items() if s > 0}
        best = math.inf
        improvements: list[int] = []
        for step, loss in losses.items():
            if loss < best:
                best, improvements = loss, [*improvements, step]
        assert recorder.checkpoint_steps() == improvements
        assert improvements != list(losses)

    def test_an_unknown_metric_is_refused_before_the_first_step(
        self, make_job: Callable[..., Job]
    ) -> None:
        recorder = Recorder()
        job = make_job(
            **self.OPTIONS,
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="perplexity",
            validation=rows(6, seed=5),
        )
        failure = failure_of(job, recorder)
        assert failure.code is FailureCode.INVALID_OPTION
        assert failure.details["known"] == ["accuracy", "loss"]
        assert "accuracy, loss" in failure.message
        assert recorder.train_values("loss") == {}


class TestProgress:
    def test_it_ends_at_the_last_step_and_reports_the_device(
        self, make_job: Callable[..., Job]
    ) -> None:
        _, recorder = run(make_job(max_steps=3).request())
        last = recorder.of(Progress)[-1]
        assert (last.step, last.of, last.eta_seconds) == (3, 3, 0.0)
        assert last.loss == recorder.train_values("loss")[3]
        assert last.examples_per_second > 0
        [notice] = recorder.of(Notice)
        assert notice.message == "Training on the CPU with 1 thread in float32, 3 steps"
        assert notice.data["malloc"] == (allocator.loaded() or "system")

    def test_it_reports_an_interval_that_is_longer_than_the_training(
        self, make_job: Callable[..., Job]
    ) -> None:
        _, recorder = run(make_job(num_train_epochs=1, logging_steps=50).request())
        steps = recorder.of(Progress)[-1].of
        [_, notice] = recorder.of(Notice)
        assert notice.data == {"option": "logging_steps", "steps": steps}
        assert notice.message.startswith(f"`training.logging_steps`: the training has {steps} step")
