"""What one pass over the training rows will be, from those that a preview has read."""

from collections.abc import Mapping
from typing import Any

from service.contract.spec import JobSpec
from worker.training.plan import Plan


def epoch_of(split: Mapping[str, Any], spec: JobSpec) -> dict[str, Any] | None:
    """`split`: what was found in the training rows. None if nobody knows how many there are."""
    if not spec.trains or split["rows_estimated"] is None or not split["features"]:
        return None
    scale = split["rows_estimated"] / split["rows_read"]
    features = round(split["features"] * scale)
    trained = split["trained_tokens"]
    plan = Plan.of(spec.training, features, spec.resources.processes)
    return {
        "is_exact": split["is_whole"],
        "rows": split["rows_estimated"],
        "features": features,
        "trained_tokens": None if trained is None else round(trained * scale),
        "batches": plan.batches_per_epoch,
        "optimizer_steps": plan.steps_per_epoch,
        "total_steps": plan.total_steps,
    }
