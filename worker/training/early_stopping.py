"""Early stopping, with the arguments and the arithmetic of transformers' EarlyStoppingCallback."""

from service.contract.training import TrainingSpec
from worker.training.progress import BestMetric, TrainingProgress


def observe(spec: TrainingSpec, best: BestMetric, progress: TrainingProgress, value: float) -> None:
    """Count an evaluation, before its value becomes the best one in `progress`."""
    before = progress.best_metric
    improved = best.is_better(value, before) and (
        before is None or abs(value - before) > spec.early_stopping_threshold
    )
    progress.evaluations_without_gain = 0 if improved else progress.evaluations_without_gain + 1


def reached(spec: TrainingSpec, progress: TrainingProgress) -> bool:
    """Whether the patience is used up."""
    patience = spec.early_stopping_patience
    return patience is not None and progress.evaluations_without_gain >= patience
