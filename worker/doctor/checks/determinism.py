"""Checks whether two runs of a job give the same model, with and without `full_determinism`."""

from pydantic import JsonValue

from worker.doctor.check import Context, Finding, failed, ok, warning
from worker.doctor.jobs import Ended, Jobs, has_bf16_gpu

_REMEDY = "Send this report: `full_determinism` guarantees the same model on the same machine."


def determinism(context: Context) -> Finding:
    """With `full_determinism` the weights must be equal; without it a difference is a warning."""
    jobs = Jobs.of(context)
    body = jobs.body("text-classification")
    precision = "bf16" if has_bf16_gpu(context) else "fp32"
    pairs = {
        name: [jobs.train(body, precision=precision, full_determinism=enabled) for _ in range(2)]
        for name, enabled in (("default", False), ("full_determinism", True))
    }
    for name, pair in pairs.items():
        for ended in pair:
            if not ended.finished:
                return failed(f"{name}: a job failed", reason=ended.ending, remedy=_REMEDY)
    data: dict[str, JsonValue] = {"precision": precision}
    data |= {name: _described(pair) for name, pair in pairs.items()}
    if not _same(pairs["full_determinism"]):
        reason = f"losses {[ended.losses for ended in pairs['full_determinism']]}"
        summary = "two runs with `full_determinism` end with different weights"
        return failed(summary, reason=reason, remedy=_REMEDY, **data)
    if _same(pairs["default"]):
        return ok("two runs end with the same weights even without `full_determinism`", **data)
    return warning(
        "two runs end with the same weights only with `full_determinism`",
        reason="this machine's kernels do not add numbers in a fixed order",
        remedy="Set `training.full_determinism: true` where a run must be repeatable.",
        **data,
    )


def _same(pair: list[Ended]) -> bool:
    first, second = (ended.result.weights_sha256 for ended in pair)
    return first == second


def _described(pair: list[Ended]) -> JsonValue:
    differences = [abs(a - b) for a, b in zip(pair[0].losses, pair[1].losses, strict=True)]
    return {
        "same_weights": _same(pair),
        "weights_sha256": [ended.result.weights_sha256 for ended in pair],
        "largest_difference_of_losses": max(differences),
    }
