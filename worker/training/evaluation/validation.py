"""The validation of one training: all its validation splits, and the latest result."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from service.contract.spec.splits import TEST, is_validation, metric_prefix
from worker.training.evaluation.evaluator import EvaluationInterruptedError, Evaluator
from worker.training.objective import Evaluation
from worker.training.progress import TrainingProgress


class Validation:
    """Evaluates the validation splits, and remembers the latest result with its step."""

    def __init__(
        self,
        evaluator: Evaluator,
        progress: TrainingProgress,
        folder: Path,
        sizes: Mapping[str, int],
        batch_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sizes`: split → number of features; `batch_size`: of all devices together."""
        self.evaluator = evaluator
        self._sizes = sizes
        self._batch_size = batch_size
        self._clock = clock
        self._splits = sorted(filter(is_validation, sizes))
        self.given = bool(self._splits)
        self.test_given = TEST in sizes
        self.folder = folder
        self._progress = progress
        self._last: tuple[int, Evaluation] | None = None
        self._dtype_changed = False

    def __call__(self) -> Evaluation | None:
        """Evaluate the current step; None if the evaluation was interrupted."""
        try:
            return self.run(self._progress.step)
        except EvaluationInterruptedError:
            return None

    def run(self, step: int) -> Evaluation:
        """Evaluate the model, which has the weights of `step`."""
        metrics: dict[str, float] = {}
        files: dict[str, Path] = {}
        samples: list[dict[str, Any]] = []
        config: dict[str, Any] = {}
        speed: dict[str, float] = {}
        for split in self._splits:
            result = self._timed(split)
            metrics |= result.metrics
            speed |= result.speed
            files |= result.files
            samples += result.samples
            config |= result.config
        whole = Evaluation(metrics, files, samples, config, speed)
        self._last = (step, whole)
        return whole

    def test(self) -> Evaluation:
        """Predictions for the test split, and metrics if it has labels."""
        return self._timed(TEST)

    def _timed(self, split: str) -> Evaluation:
        count = self._sizes[split]
        return timed(self.evaluator, split, self.folder, count, self._batch_size, self._clock)

    def change_dtype(self, dtype: torch.dtype, model: torch.nn.Module) -> None:
        """Evaluate in another dtype from now on, which invalidates the latest result."""
        model.to(dtype)
        self._dtype_changed = True

    def known(self, step: int) -> Evaluation | None:
        """The latest result if it is of `step`; then its files are still there."""
        if self._last is None or self._dtype_changed or not self.evaluated(step):
            return None
        return self._last[1]

    def evaluated(self, step: int) -> bool:
        """Whether the latest evaluation was of this step, in any dtype."""
        return self._last is not None and self._last[0] == step


def timed(
    evaluate: Callable[[str, Path], Evaluation | None],
    split: str,
    folder: Path,
    count: int,
    batch_size: int,
    clock: Callable[[], float] = time.monotonic,
) -> Evaluation:
    """The evaluation of `split`, which must exist and has `count` features, with its speed as
    Trainer reports and rounds it."""
    start = clock()
    result = evaluate(split, folder)
    assert result is not None, f"the job has no split {split!r}"
    runtime = max(clock() - start, 1e-9)
    speed = {
        "samples": count,
        "runtime": round(runtime, 4),
        "samples_per_second": round(count / runtime, 3),
        "steps_per_second": round(math.ceil(count / batch_size) / runtime, 3),
    }
    prefix = metric_prefix(split)
    return replace(result, speed={f"{prefix}{name}": speed[name] for name in speed})
