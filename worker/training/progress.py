"""The progress of a training: what a resumed run must know besides weights and random states."""

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from service.contract.spec.training import TrainingSpec
from service.contract.tasks.metric_directions import greater_is_better
from worker.failures import unreported_metric
from worker.training.distributed.ranks import Ranks

EVAL_PREFIX = "eval_"


@dataclass
class TrainingProgress:
    """Plain numbers and strings only: kept as JSON, exactly, in every checkpoint."""

    step: int = 0
    logged_step: int = 0
    logged_loss: float | None = None
    """The mean loss in the latest log."""
    loss_total: float = 0.0
    """Sum of the losses of all steps up to `logged_step`."""
    examples: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    """Tokens including padding: what the model computes on."""
    seconds: float = 0.0
    """Time spent in optimizer steps, over all attempts."""
    evaluation_seconds: float | None = None
    """What an evaluation takes, and how long a checkpoint holds the training up: for estimates."""
    saving_seconds: float | None = None
    baseline: dict[str, float] = field(default_factory=dict)
    metric: float | None = None
    """`metric_for_best_model` at the current step; None if the step was not evaluated."""
    best_metric: float | None = None
    best_step: int | None = None
    best_checkpoint: str | None = None
    """The best checkpoint so far, perhaps of an earlier attempt; relative to the workspace."""
    best_checkpoint_metric: float | None = None
    last_checkpoint: str | None = None
    evaluation_pending: bool = False
    """The training was stopped before this step's evaluation, which the resumed one makes first."""
    rollbacks: int = 0
    """How often the training has returned to a checkpoint because a number was not finite."""
    remade_until: int = -1
    """After a rollback: metrics up to this step were already reported, and are replaced by those of
    the repeated steps. -1 without a rollback, since the baseline evaluation has step 0."""
    evaluations_without_gain: int = 0
    batch_size: int | None = None
    """The size that `auto_find_batch_size` has found; None while the configured size fits."""

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises KeyError when `state` was not made by `state_dict`."""
        for name in asdict(self):
            setattr(self, name, state[name])


class LossTally:
    """The loss since the last log, and the first step that was not finite, kept on the device.

    Only `add` and `reset` avoid waiting for the device and for other processes. Each process adds
    its own share of a step's loss.
    """

    def __init__(
        self, device: torch.device, totals: Sequence[float] = (), ranks: Ranks | None = None
    ) -> None:
        """`totals`: saved result of the method `totals`, one value per process."""
        self._ranks = ranks or Ranks()
        total = totals[self._ranks.rank] if totals else 0.0
        self._total = torch.tensor(total, dtype=torch.float64, device=device)
        self._bad_step = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, step: int, loss: torch.Tensor, finite: torch.Tensor) -> None:
        """Add a step's loss; `finite` is a bool tensor. Both are scalars on the device."""
        self._total += loss
        known = finite | (self._bad_step > 0)
        self._bad_step = torch.where(known, self._bad_step, step)

    def total(self) -> float:
        return math.fsum(self.totals())

    def totals(self) -> list[float]:
        """The share of each process."""
        return self._ranks.all_gather(float(self._total.item()))

    def reset(self) -> None:
        self._total.zero_()

    def first_bad_step(self) -> int | None:
        """The first step that was not finite in any process."""
        found = filter(None, self._ranks.all_gather(int(self._bad_step.item())))
        return min(found, default=None)


class BestMetric:
    """Which evaluation is the best, by the options' `metric_for_best_model`."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.name: str | None = spec.metric_for_best_model
        if self.name is None and spec.chooses_by_metric:
            self.name = "loss"
        greater = spec.greater_is_better
        if greater is None and self.name is not None:
            greater = greater_is_better(self.name)
        self.greater_is_better = greater is not False
        self._better = operator.gt if self.greater_is_better else operator.lt

    def value_in(self, metrics: dict[str, float]) -> float | None:
        """The value of the metric; None if no metric is needed.

        StageError(invalid_option) if the evaluation does not report it.
        """
        if self.name is None:
            return None
        known = EVAL_PREFIX + self.name.removeprefix(EVAL_PREFIX)
        if known not in metrics:
            raise unreported_metric(self.name, metrics)
        return metrics[known]

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether `value` is better than `than`, which may be None. NaN is never better."""
        if than is None:
            return value == value
        return bool(self._better(value, than))
