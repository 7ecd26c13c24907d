"""`load_best_model_at_end`: the best of a training's models that still exists.

Each new best model is saved at once, so it is that of the best evaluation, unless its checkpoint
was lost.
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
    """The model of `step`; `metric` is None if no remaining model's evaluation has a number."""

    step: int
    metric: float | None
    folder: Path | None = None
    """Its checkpoint; None if the training has it in memory."""


def choose(best: BestMetric, progress: TrainingProgress, workspace: Path) -> Choice:
    """The best of the current model and all readable checkpoints of the job; the earliest of
    equals. The current model if no evaluation has a number."""
    current = Choice(progress.step, progress.metric)
    every = (current, *_saved(workspace))
    found = [one for one in every if one.metric is not None and not math.isnan(one.metric)]
    while found:
        chosen = _best_of(best, found)
        if chosen.folder is None or atomic_dir.verify(chosen.folder):
            return chosen
        found.remove(chosen)
    return current._replace(metric=None)


def described(chosen: Choice, name: str, progress: TrainingProgress) -> str:
    """A sentence about `chosen`, whose metric is called `name`."""
    if chosen.metric is None:
        which = f"The finished model is that of the last step, {chosen.step}: "
        if progress.best_step is None:
            return f"{which}`{name}` was not a number in any evaluation, so none is the best"
        return which + _lost(progress)
    which = f"The finished model is that of step {chosen.step} (`{name}`: {chosen.metric})"
    if progress.best_step in (None, chosen.step):
        return f"{which}, the best evaluation"
    return f"{which}, the best model that still exists: {_lost(progress)}"


def _lost(progress: TrainingProgress) -> str:
    return (
        f"the best evaluation was at step {progress.best_step} ({progress.best_metric}), which has "
        "no readable checkpoint"
    )


def forget_lost(progress: TrainingProgress, workspace: Path, ranks: Ranks) -> None:
    """After a resume: forget a best checkpoint that is lost, so that worse models are saved
    again."""
    if progress.best_checkpoint is None:
        return
    # From the first process: all must agree on what is saved.
    if ranks.broadcast(_metric(workspace / progress.best_checkpoint)) is None:
        progress.best_checkpoint = progress.best_checkpoint_metric = None


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
    """The metric of a checkpoint's model; None if it was not evaluated, or is lost."""
    try:
        (folder / atomic_dir.MANIFEST).stat()  # it is removed first
        saved: dict[str, Any] = json.loads((folder / "progress.json").read_bytes())
        metric: float | None = saved["progress"]["metric"]
    except (OSError, ValueError, KeyError):
        return None
    return metric
