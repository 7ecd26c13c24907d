"""lr_schedulers: learning rates step by step, as transformers.Trainer has them."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION, GreedyLR, get_scheduler

from service.contract.failures import StageError
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.choices import BY_METRIC, SCHEDULE_ARGUMENTS, Schedule
from tests.training.checkpointing.resuming import assert_resumes
from tests.training.support.jobs import Job, rows
from tests.training.support.reference_trainer import run_both
from worker.training.optim import lr_schedulers
from worker.training.plan import Plan

# Of each schedule that has arguments, some that change it.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "cosine": {"num_cycles": 1.5},
    "cosine_with_restarts": {"num_cycles": 3},
    "polynomial": {"lr_end": 1e-4, "power": 3.0},
    "inverse_sqrt": {"timescale": 5},
    "cosine_with_min_lr": {"min_lr_rate": 0.3},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-3, "warmup_lr_rate": 0.2},
    "warmup_stable_decay": {"num_decay_steps": 3, "decay_type": "linear"},
}
REQUIRED = {"cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"}
BY_STEP = [
    (name, arguments)
    for name in get_args(Schedule)
    if name not in BY_METRIC
    for arguments in (None, ARGUMENTS.get(name))
    if not (arguments is None and name in REQUIRED)
]


def rates(options: dict[str, Any], steps: int = 10) -> list[float]:
    spec = TrainingSpec(max_steps=steps, learning_rate=1.0, **options)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = lr_schedulers.build(optimizer, Plan.from_spec(spec, 8))
    seen = []
    for _ in range(steps):
        seen.append(schedule.learning_rate())
        optimizer.step()
        schedule.after_step()
    return seen


class TestNames:
    def test_those_of_transformers(self) -> None:
        assert {name.value for name in TYPE_TO_SCHEDULER_FUNCTION} == set(get_args(Schedule))

    def test_arguments_are_those_of_its_functions(self) -> None:
        general = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch", "verbose"}
        functions: dict[str, Any] = {k.value: f for k, f in TYPE_TO_SCHEDULER_FUNCTION.items()}
        functions["reduce_lr_on_plateau"] = torch.optim.lr_scheduler.ReduceLROnPlateau
        functions["greedy"] = GreedyLR
        for name, function in functions.items():
            taken = set(inspect.signature(function).parameters) - general
            assert set(SCHEDULE_ARGUMENTS.get(name, ())) == taken, name


class TestBySteps:
    def test_warm_up_of_a_ratio(self) -> None:
        assert rates({"warmup_steps": 0.15})[:4] == [0.0, 0.5, 1.0, 7 / 8]

    @pytest.mark.parametrize(("name", "arguments"), BY_STEP)
    def test_as_transformers(self, name: str, arguments: dict[str, Any] | None) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        theirs = get_scheduler(name, optimizer, 2, 10, arguments)
        expected = []
        for _ in range(10):
            expected.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            theirs.step()
        options = {"warmup_steps": 2, "lr_scheduler_type": name, "lr_scheduler_kwargs": arguments}
        assert rates(options) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("linear", None),
            ("cosine_with_restarts", ARGUMENTS["cosine_with_restarts"]),
            ("cosine_warmup_with_min_lr", ARGUMENTS["cosine_warmup_with_min_lr"]),
        ],
    )
    @pytest.mark.usefixtures("sequential")
    def test_as_trainer(
        self,
        make_job: Callable[..., Job],
        tmp_path: Path,
        name: str,
        arguments: dict[str, Any] | None,
    ) -> None:
        options = {
            "max_steps": 8,
            "warmup_steps": 2,
            "lr_scheduler_type": name,
            "lr_scheduler_kwargs": arguments,
            "logging_steps": 1,
            "save_strategy": "no",
        }
        ours, theirs, _ = run_both(make_job, tmp_path / "trainer", options)
        for metric, relative in (("learning_rate", 1e-12), ("loss", 1e-4)):
            expected = {entry["step"]: entry[metric] for entry in theirs if "loss" in entry}
            assert ours.train_values(metric) == pytest.approx(expected, rel=relative, abs=1e-12)

    @pytest.mark.parametrize("is_tensor", [False, True])
    def test_after_the_state_of_a_shorter_one_its_own_plan_holds(self, is_tensor: bool) -> None:
        rate = torch.tensor(1.0) if is_tensor else 1.0
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (rate, 0.5)]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        spec = TrainingSpec(max_steps=4, learning_rate=1.0, warmup_steps=0)
        short = lr_schedulers.build(optimizer, Plan.from_spec(spec, 8))
        optimizer.step()
        short.after_step()
        state = short.state_dict()
        own = lr_schedulers.build(
            optimizer, Plan.from_spec(spec.model_copy(update={"max_steps": 8}), 8)
        )
        own.load_state_dict(state)
        own.follow_plan()
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert (float(first), second, own.learning_rate()) == (7 / 8, 7 / 16, 7 / 8)
        assert (first is rate) is is_tensor, "the optimizer has kept its tensor"

    def test_arguments_that_do_not_fit(self) -> None:
        options = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": "low"}}
        with pytest.raises(StageError, match="lr_scheduler_kwargs") as caught:
            rates(options)
        assert caught.value.failure.details == {"option": "training.lr_scheduler_kwargs"}


BY_METRIC_OPTIONS = [
    {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0, "mode": "max"},
    },
    {
        "lr_scheduler_type": "greedy",
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "max_lr": 1.0, "min_lr": 1e-3},
    },
]


class TestMode:
    @pytest.mark.parametrize("name", sorted(BY_METRIC))
    @pytest.mark.parametrize(
        ("options", "values", "falls"),
        [
            ({"metric_for_best_model": "accuracy"}, (0.1, 0.2, 0.3, 0.4), False),
            ({"metric_for_best_model": "accuracy"}, (0.4, 0.3, 0.2, 0.1), True),
            ({"metric_for_best_model": "eval_loss"}, (0.4, 0.3, 0.2, 0.1), False),
            ({"metric_for_best_model": "perplexity"}, (4, 3, 2, 1), False),
            ({}, (0.1, 0.2, 0.3, 0.4), True),
            ({"metric_for_best_model": "wer", "greater_is_better": False}, (4, 3, 2, 1), False),
            ({"metric_for_best_model": "accuracy", "mode": "min"}, (0.1, 0.2, 0.3, 0.4), True),
        ],
        ids=[
            "rising",
            "falling",
            "falling loss",
            "falling perplexity",
            "rising loss",
            "greater_is_better given",
            "mode given",
        ],
    )
    def test_what_is_better_keeps_the_rate(
        self, name: str, options: dict[str, Any], values: tuple[float, ...], falls: bool
    ) -> None:
        mode = {"mode": options["mode"]} if "mode" in options else {}
        spec = TrainingSpec(
            max_steps=10,
            eval_strategy="steps",
            lr_scheduler_type=name,
            lr_scheduler_kwargs={"patience": 0, **mode},
            **{key: value for key, value in options.items() if key != "mode"},
        )
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = lr_schedulers.build(optimizer, Plan.from_spec(spec, 8))
        for value in values:
            schedule.after_evaluation(value)
        assert (schedule.learning_rate() < 1.0) is falls


class TestByMetric:
    @pytest.mark.parametrize("schedule", BY_METRIC_OPTIONS)
    @pytest.mark.usefixtures("sequential")
    def test_as_trainer(
        self, make_job: Callable[..., Job], tmp_path: Path, schedule: dict[str, Any]
    ) -> None:
        options = {
            "max_steps": 12,
            "learning_rate": 0.3,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "logging_steps": 1,
            "save_strategy": "no",
            **schedule,
        }
        ours, theirs, _ = run_both(make_job, tmp_path / "trainer", options)
        expected = {e["step"]: e["learning_rate"] for e in theirs if "loss" in e}
        logged = ours.train_values("learning_rate")
        # Ours is the rate that the step was made with; Trainer logs it before it evaluates, too.
        assert logged == pytest.approx(expected, rel=1e-9)
        assert len(set(logged.values())) > 1

    @pytest.mark.parametrize("schedule", BY_METRIC_OPTIONS)
    def test_a_resumed_run_is_the_same(
        self, make_job: Callable[..., Job], schedule: dict[str, Any]
    ) -> None:
        job = make_job(
            max_steps=12,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=6,
            validation=rows(6, seed=5),
            **{**schedule, "learning_rate": 0.3},
        )
        assert_resumes(job, 6)
