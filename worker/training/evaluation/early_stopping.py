"""Early stopping, with the arguments and the arithmetic of transformers' EarlyStoppingCallback."""

import math

from service.contract.spec.training import TrainingSpec
from worker.training.progress import BestMetric, TrainingProgress


def observe(spec: TrainingSpec, best: BestMetric, progress: TrainingProgress, value: float) -> None:
    """Count an evaluation, before its value becomes the best one in `progress`. NaN does not count
    as a gain."""
    before = progress.best_metric
    improved = best.is_better(value, before) and (
        before is None or abs(value - before) > spec.early_stopping_threshold
    )
    progress.evaluations_without_gain = 0 if improved else progress.evaluations_without_gain + 1


def reached(spec: TrainingSpec, progress: TrainingProgress) -> bool:
    """Whether the patience is used up."""
    patience = spec.early_stopping_patience
    return patience is not None and progress.evaluations_without_gain >= patience


def is_first_without_number(progress: TrainingProgress, value: float) -> bool:
    """Whether the evaluation that was counted last is the first of the training, and its value is
    NaN: perhaps the metric never has one with these validation rows."""
    first = progress.best_metric is None and progress.evaluations_without_gain == 1
    return first and math.isnan(value)


def described(name: str, progress: TrainingProgress) -> str:
    """Why the patience is used up, in a sentence."""
    count = progress.evaluations_without_gain
    if progress.best_metric is None:
        reason = f"`{name}` was not a number in any of {count} evaluations"
    else:
        reason = f"`{name}` has not improved in {count} evaluations"
    return f"Stopped early at step {progress.step}: {reason}"
