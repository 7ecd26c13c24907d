"""The two sides of a comparison with TRL: a case for its trainer, and a spec for our stages."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import trl_scratch
from benchmarks.training_speed import stage
from benchmarks.trl_scratch import TRLCase
from service.contract.events import Metric


@dataclass(frozen=True)
class Side:
    steps: list[dict[str, float]]
    """What was logged at each logging step."""
    rate: float
    """Real tokens, without padding, per second of training."""
    peak: float
    """Bytes resident at most."""

    def values(self, name: str) -> list[float]:
        return [step[name] for step in self.steps]

    @property
    def loss(self) -> float:
        """The mean over all logged steps."""
        losses = self.values("loss")
        return sum(losses) / len(losses)


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
) -> Side:
    """`folder`: of this run."""
    ended = stage(
        "train", folder, body, threads, prepared=result, data_roots=roots, model_roots=roots
    )
    metrics = ended.result["metrics"]
    logged = [event for event in ended.events if isinstance(event, Metric)]
    return Side(
        [event.values for event in logged if event.kind == "train"],
        metrics["train_tokens_per_second"],
        metrics["train_peak_memory_bytes"],
    )


def theirs(site: Path, case: TRLCase, *, threads: int | None = None, preload: str = "") -> Side:
    said = trl_scratch.program(
        site, "benchmarks.trl_reference", str(case.write()), threads=threads, preload=preload
    )
    return Side(said["steps"], said["tokens"] / said["seconds"], said["peak_bytes"])
