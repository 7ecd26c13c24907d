"""The two sides of a comparison with TRL: a case for its trainer, and a spec for our stages."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.training_speed import Process, Side, stage
from benchmarks.trl import scratch
from benchmarks.trl.scratch import TRLCase
from service.contract.stage.events import Metric


@dataclass(frozen=True)
class LoggedSide(Side):
    steps: list[dict[str, float]]
    """What was logged at each step."""

    def values(self, name: str) -> list[float]:
        return [step[name] for step in self.steps]


def _side(rate: float, peak: float, steps: list[dict[str, float]]) -> LoggedSide:
    return LoggedSide(rate, sum(step["loss"] for step in steps) / len(steps), peak, steps)


def prepared(body: dict[str, Any], folder: Path, roots: list[Path]) -> dict[str, Any]:
    """The result of the prepare stage. `roots`: where data and models are."""
    ended = stage("prepare", folder / "prepare", body, data_roots=roots, model_roots=roots)
    result: dict[str, Any] = ended.result
    return result


def ordered(case: TRLCase, result: dict[str, Any]) -> TRLCase:
    """With packed examples in the order of ours."""
    packs = case.options.get("packing", False)
    return replace(case, prepared_dir=str(result["prepared_dir"]) if packs else None)


def ours(
    body: dict[str, Any],
    folder: Path,
    result: dict[str, Any],
    roots: list[Path],
    threads: int | None = None,
) -> LoggedSide:
    """`folder`: of this run."""
    process = Process(threads=threads)
    ended = stage(
        "train", folder, body, process, prepared=result, data_roots=roots, model_roots=roots
    )
    metrics = ended.result["metrics"]
    logged = [event for event in ended.events if isinstance(event, Metric)]
    return _side(
        metrics["train_tokens_per_second"],
        metrics["train_peak_memory_bytes"],
        [event.values for event in logged if event.kind == "train"],
    )


def theirs(site: Path, case: TRLCase, *, threads: int | None = None) -> LoggedSide:
    result = scratch.reference(site, "train", case, threads=threads)
    return _side(result["tokens"] / result["seconds"], result["peak_bytes"], result["steps"])
