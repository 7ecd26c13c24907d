"""Promotion: a checkpoint becomes its job's model after the training has ended."""

from typing import Final

from service.contract.stages import TrainResult

_OF_EVALUATIONS: Final = ("eval_", "test_")


def promoted(result: TrainResult, earlier: TrainResult | None) -> TrainResult:
    """The result of a promoted checkpoint: its own evaluation, and the rest from the training.

    `earlier`: the training's result; None if it failed or was cancelled.
    """
    if earlier is None:
        return result.model_copy(update={"is_promoted": True})
    own = {name: value for name, value in result.metrics.items() if _is_evaluation(name)}
    kept = {name: value for name, value in earlier.metrics.items() if not _is_evaluation(name)}
    changes = {
        "is_promoted": True,
        "metrics": {**own, **kept},
        "steps": earlier.steps,
        "epochs": earlier.epochs,
        "best_step": earlier.best_step,
        "best_metric": earlier.best_metric,
        "metric_for_best_model": earlier.metric_for_best_model,
    }
    return result.model_copy(update=changes)


def _is_evaluation(name: str) -> bool:
    return name.startswith(_OF_EVALUATIONS)
