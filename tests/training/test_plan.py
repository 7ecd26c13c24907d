"""worker.training.plan: how many steps there are, and what is due after each."""

from typing import Any

import pytest

from service.contract.spec.training import TrainingSpec
from worker.training.plan import Due, Plan


def plan_of(examples: int, processes: int = 1, **options: Any) -> Plan:
    return Plan.from_spec(TrainingSpec(**options), examples, processes)


def steps_due(plan: Plan, what: str) -> list[int]:
    return [step for step in range(1, plan.total_steps + 1) if getattr(plan.due(step), what)]


class TestPlan:
    def test_a_shorter_accumulation_ends_the_epoch(self) -> None:
        spec = TrainingSpec(per_device_train_batch_size=4, gradient_accumulation_steps=3)
        plan = Plan.from_spec(spec, 37)
        assert (plan.batches_per_epoch, plan.steps_per_epoch, plan.total_steps) == (10, 4, 12)
        assert [plan.cursor(step) for step in (0, 3, 4, 5)] == [(0, 0), (0, 9), (1, 0), (1, 3)]
        assert [plan.epoch_after(step) for step in (3, 4, 5)] == [0.9, 1.0, 1.3]

    @pytest.mark.parametrize(
        ("options", "steps", "warmup"),
        [
            ({"max_steps": 0, "warmup_steps": 1}, 12, 1),
            ({"max_steps": -1, "warmup_steps": 0.25}, 12, 3),
            ({"max_steps": 1, "warmup_steps": 2}, 1, 2),
        ],
    )
    def test_steps_and_warm_up(self, options: dict[str, Any], steps: int, warmup: int) -> None:
        plan = Plan.from_spec(TrainingSpec(per_device_train_batch_size=1, **options), 4)
        assert (plan.total_steps, plan.warmup_steps) == (steps, warmup)

    def test_a_batch_is_that_of_all_processes(self) -> None:
        plan = plan_of(37, 2, per_device_train_batch_size=2, num_train_epochs=3)
        assert (plan.batch_size, plan.batches_per_epoch, plan.total_steps) == (4, 10, 30)

    @pytest.mark.parametrize(
        ("examples", "kept", "batches"), [(37, 36, 9), (36, 36, 9), (4, 4, 1), (3, 3, 1)]
    )
    def test_the_last_batch_is_dropped_unless_it_is_the_only_one(
        self, examples: int, kept: int, batches: int
    ) -> None:
        plan = plan_of(examples, per_device_train_batch_size=4, dataloader_drop_last=True)
        assert (plan.examples, plan.batches_per_epoch) == (kept, batches)

    def test_smaller_batches_make_the_same_steps(self) -> None:
        options: dict[str, Any] = {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 3,
        }
        plan = plan_of(37, 2, **options)
        smaller = plan.with_batches_of(2)
        assert (plan.batches_per_epoch, smaller.batches_per_epoch) == (5, 10)
        assert (plan.steps_per_epoch, smaller.steps_per_epoch) == (2, 2)
        assert (plan.batch_size, smaller.batch_size) == (8, 4)
        assert smaller.spec.gradient_accumulation_steps == 6
        assert smaller.total_steps == plan.total_steps == 6

    @pytest.mark.parametrize(
        ("options", "log", "evaluate", "save"),
        [
            # Evaluations and checkpoints are due at the end as well, numbers in the log are not.
            (
                {"logging_steps": 3, "eval_steps": 3, "save_steps": 3},
                [3, 6],
                [3, 6, 8],
                [3, 6, 8],
            ),
            ({"logging_steps": 3, "logging_first_step": True}, [1, 3, 6], [3, 6, 8], [8]),
            ({"logging_steps": 0.25, "save_steps": 0.4}, [2, 4, 6, 8], [2, 4, 6, 8], [4, 8]),
            ({"logging_steps": 4, "eval_steps": 1, "eval_delay": 6}, [4, 8], [6, 7, 8], [8]),
            ({"logging_steps": 8, "save_strategy": "no", "eval_strategy": "no"}, [8], [], []),
            ({"logging_steps": 8, "save_strategy": "best", "eval_steps": 4}, [8], [4, 8], []),
            # Two steps an epoch.
            (
                {
                    **dict.fromkeys(
                        ("logging_strategy", "eval_strategy", "save_strategy"), "epoch"
                    ),
                    "max_steps": 5,
                },
                [2, 4, 5],
                [2, 4, 5],
                [2, 4, 5],
            ),
        ],
    )
    def test_due(
        self, options: dict[str, Any], log: list[int], evaluate: list[int], save: list[int]
    ) -> None:
        given = {"max_steps": 8, "eval_strategy": "steps", "save_strategy": "steps", **options}
        plan = plan_of(2, per_device_train_batch_size=1, **given)
        assert [steps_due(plan, what) for what in ("log", "evaluate", "save")] == [
            log,
            evaluate,
            save,
        ]

    def test_evaluations_by_epoch_are_delayed_by_epochs(self) -> None:
        """Two steps an epoch: the first two epochs are left out, not the first two steps."""
        options: dict[str, Any] = {
            "eval_strategy": "epoch",
            "eval_delay": 2.5,
            "num_train_epochs": 4,
        }
        plan = plan_of(4, per_device_train_batch_size=2, **options)
        assert steps_due(plan, "evaluate") == [6, 8]
        assert plan.due(8) == Due(log=False, evaluate=True, save=True)

    def test_an_interval_below_one_is_a_ratio(self) -> None:
        plan = plan_of(2, max_steps=7)
        assert [plan.interval(steps) for steps in (0.1, 0.5, 1, 1.0, 3)] == [1, 4, 1, 1, 3]
