"""Learning rate schedules: those that follow the steps, and those that follow a metric."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from transformers import get_scheduler

from service.contract.failures import FailureCode, StageError
from service.contract.training_arguments.choices import BY_METRIC
from worker.training.plan import Plan
from worker.training.progress import BestMetric


class Schedule(ABC):
    """One interface for both kinds; each ignores the calls that do not apply to it."""

    def __init__(self, scheduler: Any, optimizer: Any) -> None:
        self._scheduler = scheduler
        self._optimizer = optimizer

    def after_step(self, was_skipped: Callable[[], bool] | None = None) -> None:  # noqa: B027
        """Call after each optimizer step. If loss scaling skipped the step, the schedule does not
        move, as in Trainer; `was_skipped` returns that, and is called as late as possible."""

    def settle(self) -> None:  # noqa: B027
        """Call `was_skipped` of the last step, so that the optimizer has the learning rates of the
        next step."""

    def after_evaluation(self, metric: float) -> None:  # noqa: B027
        """The value of `metric_for_best_model` is known."""

    @abstractmethod
    def learning_rate(self) -> float:
        """The first group's learning rate for the next optimizer step. Settles."""

    def scale(self, factor: float) -> None:
        """Multiply all learning rates from the next optimizer step on."""
        for group in self._optimizer.param_groups:
            for name in {"lr", "initial_lr"} & group.keys():
                group[name] *= factor

    def follow_plan(self) -> None:  # noqa: B027
        """Use this schedule's learning rate for the next optimizer step, after the state of another
        schedule, perhaps a shorter one, was loaded."""

    def state_dict(self) -> dict[str, Any]:
        self.settle()
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)


class _ByStep(Schedule):
    _was_skipped: Callable[[], bool] | None = None

    def after_step(self, was_skipped: Callable[[], bool] | None = None) -> None:
        if was_skipped is None:
            self._scheduler.step()
        self._was_skipped = was_skipped

    def settle(self) -> None:
        was_skipped, self._was_skipped = self._was_skipped, None
        if was_skipped is not None and not was_skipped():
            self._scheduler.step()

    def learning_rate(self) -> float:
        self.settle()
        return float(self._scheduler.get_last_lr()[0])

    def scale(self, factor: float) -> None:
        self.settle()
        super().scale(factor)
        scheduler = self._scheduler
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
        scheduler._last_lr = [rate * factor for rate in scheduler.get_last_lr()]

    def follow_plan(self) -> None:
        scheduler = self._scheduler
        factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
        for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):  # keep the optimizer's tensor, as LRScheduler
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        scheduler._last_lr = rates

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._was_skipped = None
        super().load_state_dict(state)


class _ByMetric(Schedule):
    def after_evaluation(self, metric: float) -> None:
        self._scheduler.step(metric)

    def learning_rate(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])


def build(optimizer: Any, plan: Plan) -> Schedule:
    """The job's schedule. StageError(invalid_option) if its arguments do not fit."""
    spec = plan.spec
    arguments = dict(spec.lr_scheduler_kwargs or {})
    if spec.lr_scheduler_type in BY_METRIC:
        arguments.setdefault("mode", "max" if BestMetric(spec).greater_is_better else "min")
    try:
        scheduler = get_scheduler(
            spec.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=plan.warmup_steps,
            num_training_steps=plan.total_steps,
            scheduler_specific_kwargs=arguments,
        )
    except (TypeError, ValueError) as error:
        option = "training.lr_scheduler_kwargs"
        raise StageError(
            FailureCode.INVALID_OPTION, f"`{option}`: {error}", option=option
        ) from error
    kind = _ByMetric if spec.lr_scheduler_type in BY_METRIC else _ByStep
    return kind(scheduler, optimizer)
