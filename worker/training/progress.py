"""Where a training stands: what a resumed run must know beside weights and random numbers."""

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

from service.contract.failures import FailureCode, StageError
from service.contract.training import TrainingSpec
from worker.training.distributed.ranks import Ranks

EVAL_PREFIX = "eval_"
# What the checkpoints of earlier versions lack, and what it was there.
_LATER: Final[dict[str, Any]] = {
    "remade_until": -1,
    "metric": None,
    "best_checkpoint_metric": None,
}


@dataclass
class TrainingProgress:
    """Plain numbers and strings only: kept as JSON, exactly, in every checkpoint."""

    step: int = 0
    logged_step: int = 0
    logged_loss: float | None = None
    """Mean loss that was logged last."""
    loss_total: float = 0.0
    """Sum of all steps' losses up to `logged_step`."""
    examples: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    """Tokens with padding: what the model computes on."""
    seconds: float = 0.0
    """Time spent in optimizer steps, over all attempts."""
    baseline: dict[str, float] = field(default_factory=dict)
    metric: float | None = None
    """The value of `metric_for_best_model` at this very step; None if it was not evaluated."""
    best_metric: float | None = None
    best_step: int | None = None
    best_checkpoint: str | None = None
    """The best one that was saved; relative to the workspace, perhaps of an earlier attempt."""
    best_checkpoint_metric: float | None = None
    last_checkpoint: str | None = None
    is_unjudged: bool = False
    """This step's evaluation, and what follows from it, is still to be made."""
    rollbacks: int = 0
    """How often a number was not finite and the training went back to a checkpoint."""
    remade_until: int = -1
    """The numbers that were told of the steps up to this one are void: the training went back. Of
    an attempt that begins again from nothing they are not, and its baseline is that of step 0."""
    evaluations_without_gain: int = 0
    batch_size: int | None = None
    """What `auto_find_batch_size` has found, once it had to look."""

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises KeyError when `state` is not one that `state_dict` made."""
        for name in asdict(self):
            setattr(self, name, (_LATER | state)[name])


class LossTally:
    """Losses since the last log and the first step that was not finite, kept on the device.

    Adding never waits for the device or for other processes; all else does. Each process adds its
    own share of a step's loss.
    """

    def __init__(
        self, device: torch.device, totals: Sequence[float] = (), ranks: Ranks | None = None
    ) -> None:
        """`totals`: what `totals` once gave, one for each process."""
        self._ranks = ranks or Ranks()
        total = totals[self._ranks.number] if totals else 0.0
        self._total = torch.tensor(total, dtype=torch.float64, device=device)
        self._bad_step = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, step: int, loss: torch.Tensor, finite: torch.Tensor) -> None:
        """Count a step's loss (scalar); `finite` is a bool scalar, false once is remembered."""
        self._total += loss
        known = finite | (self._bad_step > 0)
        self._bad_step = torch.where(known, self._bad_step, step)

    def total(self) -> float:
        return math.fsum(self.totals())

    def totals(self) -> list[float]:
        """The share of each process."""
        return self._ranks.gathered(float(self._total.item()))

    def reset(self) -> None:
        self._total.zero_()

    def first_bad_step(self) -> int | None:
        """In any process."""
        found = filter(None, self._ranks.gathered(int(self._bad_step.item())))
        return min(found, default=None)


class BestMetric:
    """Which evaluation is the best, by the options' `metric_for_best_model`."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.name: str | None = spec.metric_for_best_model
        if self.name is None and spec.chooses_by_metric:
            self.name = "loss"
        greater = spec.greater_is_better
        if greater is None:
            greater = self.name is not None and not self.name.endswith("loss")
        self.greater_is_better: bool = greater
        self._better = operator.gt if greater else operator.lt

    def of(self, metrics: dict[str, float]) -> float | None:
        """The metric's value; None when none was asked for. StageError when it is unknown."""
        if self.name is None:
            return None
        known = EVAL_PREFIX + self.name.removeprefix(EVAL_PREFIX)
        if known not in metrics:
            names = sorted(name.removeprefix(EVAL_PREFIX) for name in metrics)
            raise StageError(
                FailureCode.INVALID_OPTION,
                f"`training.metric_for_best_model` is `{self.name}`, but the evaluation reports "
                f"only: {', '.join(names)}",
                option="training.metric_for_best_model",
                given=self.name,
                known=names,
            )
        return metrics[known]

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether `value` beats the best so far, of which there may be none. NaN never does."""
        if than is None:
            return value == value
        return bool(self._better(value, than))
