"""The loop's small parts: randomness, reporting, evaluation."""

import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils._python_dispatch import TorchDispatchMode

from service.contract.failures import StageError
from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import Metric, PhaseChanged, Progress
from service.contract.states import Phase
from tests.training.support.jobs import Recorder, TinyObjective, rows, tiny_model
from worker.tasks.base import PreparedSplit
from worker.training.distributed.ranks import Ranks
from worker.training.evaluation.evaluator import Evaluator
from worker.training.plan import Plan
from worker.training.progress import TrainingProgress
from worker.training.reporting.log_history import LogHistory
from worker.training.reporting.reporter import Reporter
from worker.training.reproducibility import rng


class TestRandomness:
    def test_what_is_restored_draws_the_same(self) -> None:
        def draw() -> list[float]:
            return [random.random(), float(np.random.rand()), float(torch.rand(()))]

        np.random.randn()  # leaves half of a pair of normal numbers in the state
        state = rng.capture()
        first, normal = draw(), np.random.randn()
        assert draw() != first
        rng.restore(state)
        assert (draw(), np.random.randn()) == (first, normal)

    def test_preserved_also_after_an_error(self) -> None:
        before = torch.get_rng_state()

        def draw_and_fail() -> None:
            with rng.preserved():
                torch.rand(3)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            draw_and_fail()
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_process_without_cuda_keeps_nothing_of_it(self) -> None:
        assert rng.capture()["cuda"] is None

    def test_of_several_gpus_only_that_of_this_process(self, gpus: "_Generators") -> None:
        state = rng.capture()
        assert torch.equal(state["cuda"], gpus.states[1])
        gpus.states[1] = torch.tensor([9], dtype=torch.uint8)
        rng.restore(state)
        assert [each.tolist() for each in gpus.states] == [[10], [11], [12]]

    def test_a_resume_on_a_cpu_leaves_the_gpus_part_out(self) -> None:
        first, state = torch.rand(()), rng.capture()
        del first
        drawn = torch.rand(())
        rng.restore({**state, "cuda": torch.tensor([3], dtype=torch.uint8)})
        assert torch.rand(()) == drawn

    def test_the_order_depends_on_seed_and_epoch_alone(self) -> None:
        orders = [rng.shuffled(50, seed, epoch) for seed in (42, 43) for epoch in (0, 1)]
        assert all(sorted(order) == list(range(50)) for order in orders)
        assert len({tuple(order) for order in orders}) == 4
        torch.rand(3)
        assert rng.shuffled(50, 42, 0) == orders[0]
        assert list(rng.shuffled(8, 42, 0)) == [7, 4, 2, 5, 1, 6, 0, 3]


class _Generators:
    """torch.cuda with three devices; this process computes on the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = [torch.tensor([n], dtype=torch.uint8) for n in (10, 11, 12)]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: self.states[1])
        monkeypatch.setattr(torch.cuda, "set_rng_state", self._set)

    def _set(self, state: torch.Tensor) -> None:
        self.states[1] = state


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> _Generators:
    return _Generators(monkeypatch)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TestReporter:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def progress(self) -> TrainingProgress:
        return TrainingProgress()

    @pytest.fixture
    def recorder(self) -> Recorder:
        return Recorder()

    @pytest.fixture
    def reporter(self, clock: Clock, progress: TrainingProgress, recorder: Recorder) -> Reporter:
        plan = Plan.from_spec(TrainingSpec(max_steps=10, per_device_train_batch_size=1), 5)
        state = SimpleNamespace(plan=plan, progress=progress, history=LogHistory())
        return Reporter(recorder.send, state, 1e6, clock)

    def test_at_most_four_a_second(
        self, reporter: Reporter, clock: Clock, recorder: Recorder
    ) -> None:
        for _ in range(200):
            reporter.tick()
            clock.now += 0.01
        assert len(recorder.of(Progress)) == 8

    def test_the_speed_is_of_training_alone(
        self, reporter: Reporter, clock: Clock, progress: TrainingProgress, recorder: Recorder
    ) -> None:
        reporter.start()
        clock.now += 4
        reporter.count(examples=8, tokens=100, padded_tokens=120)
        progress.step = 2
        reporter.pause(Phase.EVALUATING)
        clock.now += 1000
        reporter.start()
        reporter.tick(now=True)
        reporter.log({"loss": 1.0})
        clock.now += 1
        reporter.count(examples=1, tokens=10, padded_tokens=10)
        reporter.log({"loss": 1.0})
        assert recorder.of(Progress)[-1] == Progress(
            step=2, of=10, epoch=0.4, examples_per_second=2.0, eta_seconds=None
        )
        first, second = recorder.of(Metric)
        for event, flos in ((first, 1.2e8), (second, 1.3e8)):
            assert event.values.pop("total_flos") == flos
            assert 2**26 < event.values.pop("memory_rss_bytes") < 2**40
        assert first.values == {"loss": 1.0, "examples_per_second": 2, "tokens_per_second": 25}
        assert second.values == {"loss": 1.0, "examples_per_second": 1, "tokens_per_second": 10}
        assert [event.phase for event in recorder.of(PhaseChanged)] == [
            Phase.TRAINING,
            Phase.EVALUATING,
            Phase.TRAINING,
        ]
        assert progress.seconds == 5

    def test_a_resumed_run_adds_up(self, clock: Clock, recorder: Recorder) -> None:
        progress = TrainingProgress(
            step=4, examples=40, tokens=400, padded_tokens=500, seconds=20.0
        )
        plan = Plan.from_spec(TrainingSpec(max_steps=5, per_device_train_batch_size=1), 5)
        history = LogHistory()
        state = SimpleNamespace(plan=plan, progress=progress, history=history)
        reporter = Reporter(recorder.send, state, 1e12, clock)
        reporter.start()
        clock.now += 5
        reporter.count(10, 100, 150)
        progress.step = 5
        reporter.stop()
        summary = reporter.summary(0.5, peak_flops=52e12, peak_memory=2**30)
        assert summary.pop("train_peak_memory_bytes") == 2**30
        assert summary == {
            "train_loss": 0.5,
            "train_runtime": 25.0,
            "train_samples_per_second": 2.0,
            "train_tokens_per_second": 20.0,
            "train_steps_per_second": 0.2,
            "total_flos": 6.5e14,
            "train_mfu": 0.5,
        }
        assert history.for_trainer_state() == [
            {
                "train_loss": 0.5,
                "train_runtime": 25.0,
                "train_samples_per_second": 2.0,
                "train_steps_per_second": 0.2,
                "total_flos": 6.5e14,
                "epoch": 1.0,
                "step": 5,
            }
        ]
        assert "train_mfu" not in reporter.summary(0.5, peak_flops=None, peak_memory=0)


BY_FOUR = TrainingSpec(per_device_eval_batch_size=4)


def evaluator_of(
    model: Any,
    data: Any,
    tick: Callable[[], None] = lambda: None,
    ranks: Ranks | None = None,
    accelerator: Accelerator | None = None,
    **options: Any,
) -> Evaluator:
    objective = TinyObjective({name: PreparedSplit(data, data) for name in ("validation", "train")})
    accelerator = accelerator or Accelerator(cpu=True)
    return Evaluator(accelerator, model, objective, BY_FOUR, tick, ranks or Ranks(), **options)


def forward(evaluator: Evaluator, data: Any) -> Iterator[tuple[list[int], Any]]:
    return evaluator.forward(data, evaluator._objective.collate)


class TestEvaluator:
    @pytest.mark.parametrize("as_dataset", [True, False])
    def test_batches_of_similar_length_the_longest_first(
        self, tmp_path: Path, as_dataset: bool
    ) -> None:
        data = rows(11, seed=2)
        features: Any = datasets.Dataset.from_list(data) if as_dataset else data
        ticks: list[int] = []
        evaluator = evaluator_of(tiny_model(), features, lambda: ticks.append(1))
        lengths = [
            [len(data[index]["input_ids"]) for index in indices]
            for indices, output in forward(evaluator, features)
            if not output.logits.requires_grad
        ]
        assert [length for group in lengths for length in group] == sorted(
            (len(row["input_ids"]) for row in data), reverse=True
        )
        assert [len(group) for group in lengths] == [4, 4, 3]
        assert len(ticks) == 3

    def test_a_batch_that_is_too_large_is_computed_in_parts(self) -> None:
        data = rows(11, seed=2)
        notices: list[dict[str, object]] = []

        def notice(message: str, **data: object) -> None:
            notices.append({"message": message, **data})

        model = tiny_model().eval()
        whole = dict(_of_each(forward(evaluator_of(model, data, notice=notice), data)))
        small = _Small(model, 2)
        parts = list(forward(evaluator_of(small, data, notice=notice), data))
        assert [len(indices) for indices, _ in parts] == [2, 2, 2, 2, 2, 1]
        assert small.sizes == [4, 2, 2, 4, 2, 2, 3, 2, 1]
        assert all(held is None for held in small.held_when_halved)
        for index, logits in _of_each(parts):
            torch.testing.assert_close(logits, whole[index])
        assert [(each["batch_size"], each["longest_sequence"]) for each in notices] == [
            (4, max(len(row["input_ids"]) for row in data))
        ]
        assert "`training.per_device_eval_batch_size`" in str(notices[0]["message"])

    def test_a_single_example_that_is_too_large_ends_it(self) -> None:
        data = rows(3)
        evaluator = evaluator_of(_Small(tiny_model(), 0), data)
        with pytest.raises(StageError, match="shorten the sequences") as caught:
            list(forward(evaluator, data))
        assert caught.value.failure.details["batch_size"] == 1

    def test_processes_that_compute_together_cannot_halve(self) -> None:
        data = rows(4)
        model = _Small(tiny_model(), 2)
        evaluator = evaluator_of(model, data, ranks=_Two(), together=True)
        with pytest.raises(StageError, match=r"lower `training\.per_device_eval_batch_size`"):
            list(forward(evaluator, data))
        assert model.sizes == [4]

    def test_the_model_trains_on_as_before(self, tmp_path: Path) -> None:
        data = rows(3)
        model = tiny_model().train()
        evaluator = evaluator_of(model, data)
        before = torch.get_rng_state()
        result = evaluator("validation", tmp_path / "files")
        assert result is not None
        assert set(result.metrics) == {"eval_loss", "eval_accuracy"}
        assert result.files["validation.json"].is_file()
        assert model.training
        assert torch.equal(torch.get_rng_state(), before)
        assert evaluator("test", tmp_path / "files") is None

    def test_weights_are_cast_once(self, tmp_path: Path) -> None:
        """Under autocast; an evaluation after a change of the weights sees the change."""
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        data = rows(9)
        model = accelerator.prepare_model(tiny_model(), evaluation_mode=True)
        evaluator = evaluator_of(model, data, accelerator=accelerator)
        found = []
        for _ in range(2):
            with _Casts(model.transformer.h[0].mlp.c_fc.weight) as casts:
                found.append(evaluator("validation", tmp_path))
            assert casts.count == 1
            with torch.no_grad():
                model.transformer.h[0].mlp.c_fc.weight.mul_(2)
        AcceleratorState._reset_state(reset_partial_state=True)
        assert found[0] is not None
        assert found[1] is not None
        assert found[0].metrics["eval_loss"] != found[1].metrics["eval_loss"]


def _of_each(parts: Iterable[tuple[list[int], Any]]) -> Iterator[tuple[int, torch.Tensor]]:
    """Each feature's logits at its first token, which padding does not reach."""
    for indices, output in parts:
        yield from zip(indices, output.logits[:, 0], strict=True)


class _Two(Ranks):
    """The first of two processes, which has got as far as its own part."""

    def __init__(self) -> None:
        super().__init__(0, 2)


class _Small(torch.nn.Module):
    """`model` on a device whose memory is enough for `fit` sequences."""

    def __init__(self, model: Any, fit: int) -> None:
        super().__init__()
        self._model, self._fit = model, fit
        self.sizes: list[int] = []
        self.held_when_halved: list[torch.Tensor | None] = []
        self._held: weakref.ref[torch.Tensor] | None = None

    def forward(self, **batch: torch.Tensor) -> Any:
        if self._held is not None:
            self.held_when_halved.append(self._held())
        activations = torch.zeros(3)
        self._held = weakref.ref(activations)
        self.sizes.append(len(batch["input_ids"]))
        if self.sizes[-1] > self._fit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self._model(**batch)


class _Casts(TorchDispatchMode):
    """Counts the copies of `weight` in bfloat16."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._place = weight.data_ptr()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() == self._place:
            self.count += 1
        return func(*args, **(kwargs or {}))
