"""`load_best_model_at_end`: which of a training's models is the best one that is left.

Each new best is saved when it occurs, so that is the best evaluation's, unless its checkpoint was
lost since, or was never written by an older release.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from worker.storage import atomic_dir
from worker.training.distributed.ranks import Ranks
from worker.training.progress import BestMetric, TrainingProgress


class Choice(NamedTuple):
    """The model of `step`; `metric` is None where none that is left was evaluated."""

    step: int
    metric: float | None
    folder: Path | None = None
    """Its checkpoint; None: the training itself has it."""

    @property
    def is_judged(self) -> bool:
        return self.metric is not None and not math.isnan(self.metric)


def choose(best: BestMetric, progress: TrainingProgress, workspace: Path) -> Choice:
    """The best of the model at hand and all readable checkpoints of the job; of equals the
    earliest. The model at hand if none was evaluated."""
    at_hand = Choice(progress.step, progress.metric)
    found = [choice for choice in (at_hand, *_saved(workspace)) if choice.is_judged]
    while found:
        chosen = _best_of(best, found)
        if chosen.folder is None or atomic_dir.verify(chosen.folder):
            return chosen
        found.remove(chosen)
    return at_hand


def described(chosen: Choice, name: str, progress: TrainingProgress) -> str:
    """`chosen`, whose metric is called `name`, in words."""
    which = f"The finished model is that of step {chosen.step} (`{name}`: {chosen.metric})"
    if progress.best_step in (None, chosen.step):
        return f"{which}, the best evaluation"
    return (
        f"{which}, the best one that can still be had: the best evaluation was that of step "
        f"{progress.best_step} ({progress.best_metric}), which has no readable checkpoint"
    )


def forget_lost(progress: TrainingProgress, workspace: Path, ranks: Ranks) -> None:
    """After a resume: a best checkpoint that is gone no longer keeps others from being saved. The
    metric of one that an older release wrote is read from it, too."""
    if progress.best_checkpoint is None:
        return
    # From one process: what is saved must be the same for all of them.
    metric = ranks.from_first(_metric(workspace / progress.best_checkpoint))
    progress.best_checkpoint_metric = metric
    if metric is None:
        progress.best_checkpoint = None


def _best_of(best: BestMetric, choices: list[Choice]) -> Choice:
    first, *others = sorted(choices, key=lambda choice: choice.step)
    for other in others:
        if other.metric is not None and best.is_better(other.metric, first.metric):
            first = other
    return first


def _saved(workspace: Path) -> Iterator[Choice]:
    for folder in workspace.glob("attempts/*/checkpoints/*"):
        if folder.name.isdecimal():
            yield Choice(int(folder.name), _metric(folder), folder)


def _metric(folder: Path) -> float | None:
    """By which the model of a checkpoint is judged; None if it was not evaluated, or is gone."""
    try:
        (folder / atomic_dir.MANIFEST).stat()  # removed before all else
        saved: dict[str, Any] = json.loads((folder / "progress.json").read_bytes())["progress"]
    except (OSError, ValueError, KeyError):
        return None
    metric: float | None = saved.get("metric")
    if metric is None and saved.get("best_step") == saved.get("step"):
        metric = saved.get("best_metric")
    return metric
