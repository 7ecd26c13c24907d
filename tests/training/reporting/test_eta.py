"""How long a training still takes, by a clock that the tests move."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import Progress
from service.contract.states import Phase
from tests.training.support.jobs import Recorder
from worker.training.objective import Evaluation
from worker.training.plan import Plan
from worker.training.progress import TrainingProgress
from worker.training.reporting.eta import FEW_STEPS, Pace
from worker.training.reporting.log_history import LogHistory
from worker.training.reporting.reporter import Reporter


class Training:
    """A training whose steps, evaluations and checkpoints take the seconds that a test sets."""

    def __init__(
        self,
        examples: int = 100,
        *,
        progress: TrainingProgress | None = None,
        sizes: dict[str, int] | None = None,
        **options: Any,
    ) -> None:
        spec = TrainingSpec.model_validate({"per_device_train_batch_size": 1} | options)
        self.now = 100.0
        self.plan = Plan.from_spec(spec, examples)
        self.progress = progress or TrainingProgress()
        self.events = Recorder()
        state = SimpleNamespace(plan=self.plan, progress=self.progress, history=LogHistory())
        self.reporter = Reporter(self.events.send, state, 1.0, lambda: self.now, sizes=sizes)
        self.reporter.start()

    def steps(self, *seconds: float) -> None:
        """Make steps that take so long, without what is due after them."""
        for each in seconds:
            self.now += each
            self.progress.step += 1
            self.reporter.count(1, 10, 10)

    def evaluate(self, seconds: float) -> None:
        self.reporter.pause(Phase.EVALUATING)
        self.now += seconds
        self.reporter.start()
        self.reporter.evaluated(Evaluation({}, speed={"eval_runtime": seconds}))

    def save(self, seconds: float) -> None:
        self.reporter.pause(Phase.SAVING)
        self.now += seconds
        self.reporter.start()

    @property
    def eta(self) -> float | None:
        self.reporter.tick(now=True)
        found: float | None = self.events.of(Progress)[-1].eta_seconds
        return found


class TestSteps:
    def test_unknown_until_two_steps_are_made(self) -> None:
        training = Training(max_steps=10)
        assert training.eta is None
        training.steps(60)  # compiles
        assert training.eta is None
        training.steps(2)
        assert training.eta == pytest.approx(8 * 2)

    def test_it_falls_within_a_step_but_not_below_its_end(self) -> None:
        training = Training(max_steps=10)
        training.steps(9, 2, 2)
        found = []
        for _ in range(4):
            found.append(training.eta)
            training.now += 0.75
        assert found == pytest.approx([14, 13.25, 12.5, 12])

    def test_a_step_that_compiles_or_sleeps_counts_as_three(self) -> None:
        training = Training(max_steps=110)
        training.steps(30, *[1] * 5, 600, *[1] * 3)
        assert training.eta == pytest.approx(100 * (8 * 1 + 3) / 9)

    def test_the_recent_speed_counts(self) -> None:
        training = Training(max_steps=300)
        training.steps(*[4] * 100, *[1] * 100)
        assert training.eta == pytest.approx(100)

    def test_many_short_steps_are_measured_together(self) -> None:
        """On a GPU the host waits in one step of many for all the others."""
        training = Training(max_steps=1000)
        training.steps(5, *[0, 0, 0, 0.6] * 25)
        assert training.eta == pytest.approx(899 * 0.15)

    def test_a_short_last_step_of_an_epoch_counts_for_less(self) -> None:
        """Five batches in steps of four: the second step of an epoch has one of them."""
        training = Training(5, num_train_epochs=4, gradient_accumulation_steps=4)
        assert training.plan.total_steps == 8
        training.steps(8, 2, 8)
        assert training.eta == pytest.approx(2 + 2 * 10)
        training.steps(2)
        assert training.eta == pytest.approx(2 * 10)

    def test_nothing_is_left_at_the_end(self) -> None:
        training = Training(max_steps=3)
        training.steps(1, 1, 1)
        assert training.eta == 0


class TestResume:
    def resumed(self, **options: Any) -> Training:
        """After 50 steps of 8 seconds, in another attempt."""
        progress = TrainingProgress()
        training = Training(max_steps=100, progress=progress, **options)
        saved = TrainingProgress(
            step=50, seconds=400.0, evaluation_seconds=30.0, saving_seconds=4.0
        ).state_dict()
        progress.load_state_dict(saved)  # as `TrainingRun.resume` does, after the reporter exists
        return training

    def test_at_first_by_the_speed_of_the_earlier_attempts(self) -> None:
        training = self.resumed()
        assert training.eta == pytest.approx(50 * 8 + 2 * 4)  # the last checkpoint, and the model
        training.steps(20, 1)
        assert training.eta == pytest.approx(48 * 8 + 8)

    def test_then_by_that_of_this_machine(self) -> None:
        training = self.resumed()
        training.steps(20, *[1] * FEW_STEPS)
        assert training.eta == pytest.approx((50 - 1 - FEW_STEPS) * 1 + 8)

    def test_evaluations_take_what_they_took_before(self) -> None:
        training = self.resumed(sizes={"validation": 5}, eval_strategy="steps", eval_steps=20)
        assert training.eta == pytest.approx(50 * 8 + 3 * 30 + 8)

    def test_an_evaluation_that_was_interrupted_is_to_come(self) -> None:
        training = self.resumed(sizes={"validation": 5}, eval_strategy="steps", eval_steps=50)
        assert training.eta == pytest.approx(50 * 8 + 30 + 8)
        training.progress.evaluation_pending = True
        assert training.eta == pytest.approx(50 * 8 + 2 * 30 + 8)

    def test_a_rollback_counts_the_repeated_steps(self) -> None:
        training = Training(max_steps=20)
        training.steps(*[1] * 10)
        training.progress.step = 4
        assert training.eta == pytest.approx(16)
        training.steps(1)
        assert training.eta == pytest.approx(15)


class TestEvaluationsAndCheckpoints:
    def test_those_to_come_as_long_as_the_recent_ones(self) -> None:
        training = Training(
            max_steps=100,
            sizes={"validation": 8},
            eval_strategy="steps",
            eval_steps=10,
            save_steps=20,
        )
        training.steps(*[1] * 10)
        training.evaluate(20)
        assert training.eta == pytest.approx(90 + 9 * 20)
        training.steps(*[1] * 10)
        training.evaluate(30)
        training.save(5)
        assert training.eta == pytest.approx(80 + 8 * 25 + (4 + 1) * 5)

    def test_before_the_first_by_the_number_of_rows(self) -> None:
        training = Training(
            100, num_train_epochs=3, sizes={"validation": 30}, eval_strategy="epoch"
        )
        training.steps(*[1] * 50)
        forward = 30 / 3  # a third of a training step for each row
        assert training.eta == pytest.approx(250 + 3 * forward)

    def test_the_baseline_is_one(self) -> None:
        training = Training(max_steps=10, sizes={"validation": 8}, eval_strategy="epoch")
        training.reporter.evaluated(
            Evaluation({}, speed={"eval_a_runtime": 3.0, "eval_b_runtime": 4.0})
        )
        training.steps(1, 1)
        assert training.eta == pytest.approx(8 + 7)

    def test_the_current_one_passes(self) -> None:
        training = Training(
            max_steps=20, sizes={"validation": 8}, eval_strategy="steps", eval_steps=5
        )
        training.steps(*[1] * 5)
        training.evaluate(10)
        training.steps(*[1] * 5)
        training.reporter.pause(Phase.EVALUATING)
        training.now += 4
        assert training.eta == pytest.approx(10 + 3 * 10 - 4)
        training.now += 100
        assert training.eta == pytest.approx(10 + 2 * 10)

    def test_after_the_last_step(self) -> None:
        """The model is saved, evaluated if an earlier step may be the best, and tested."""
        training = Training(
            max_steps=4,
            sizes={"validation": 8, "test": 16},
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            load_best_model_at_end=True,
        )
        training.steps(1, 1)
        training.evaluate(10)
        training.save(3)
        assert training.eta == pytest.approx(2 + 10 + 3 + (3 + 10 + 20))
        training.steps(1, 1)
        training.evaluate(10)
        training.save(3)
        training.reporter.stop()
        found = []
        for phase in (Phase.SAVING, Phase.EVALUATING, Phase.PREDICTING):
            training.reporter.phase(phase)
            training.now += 1
            found.append(training.eta)
        assert found == pytest.approx([2 + 10 + 20, 9 + 20, 19])
        training.reporter.finished()
        assert training.events.of(Progress)[-1].eta_seconds == 0

    def test_early_stopping_leaves_no_steps(self) -> None:
        training = Training(
            max_steps=100, sizes={"validation": 8}, eval_strategy="steps", eval_steps=2
        )
        training.steps(1, 1)
        training.evaluate(10)
        assert training.eta == pytest.approx(98 + 49 * 10)
        training.reporter.stop()
        training.reporter.phase(Phase.SAVING)
        assert training.eta == 0


class TestPace:
    def test_a_slow_first_step_alone_gives_no_estimate(self) -> None:
        pace = Pace()
        pace.add(0.1, 50)
        assert pace.seconds_per_epoch() is None
        pace.add(0.1, 0.25)  # a block that is not yet full
        assert pace.seconds_per_epoch() == pytest.approx(2.5)


@pytest.mark.parametrize(
    "options",
    [
        {"eval_strategy": "steps", "eval_steps": 7, "save_steps": 5, "max_steps": 33},
        {"eval_strategy": "steps", "eval_steps": 7, "eval_delay": 13, "max_steps": 35},
        {"eval_strategy": "steps", "eval_steps": 7, "eval_delay": 34, "max_steps": 33},
        {"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 0.3, "num_train_epochs": 2},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 3},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2.5},
        {"eval_strategy": "epoch", "eval_delay": 1.5, "num_train_epochs": 2.5},
        {"eval_strategy": "epoch", "eval_delay": 2, "num_train_epochs": 4, "max_steps": 39},
        {"eval_strategy": "no", "save_strategy": "no"},
        {"save_strategy": "best", "eval_strategy": "epoch", "metric_for_best_model": "loss"},
    ],
)
def test_what_is_due_later_is_counted_as_the_loop_finds_it(options: dict[str, Any]) -> None:
    spec = TrainingSpec.model_validate(
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3} | options
    )
    plan = Plan.from_spec(spec, 61)
    for step in range(plan.total_steps + 1):
        later = [plan.due(after) for after in range(step + 1, plan.total_steps + 1)]
        assert plan.evaluations_after(step) == sum(due.evaluate for due in later)
        assert plan.saves_after(step) == sum(due.save for due in later)
    counts = [plan.saves_after(step) for step in range(plan.total_steps + 1)]
    assert all(before >= after for before, after in pairwise(counts))
