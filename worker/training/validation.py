"""The validation of one run: all its validation splits, and what the last look at them gave."""

from pathlib import Path
from typing import Any

import torch

from service.contract.splits import is_validation
from worker.training.evaluation import Evaluator
from worker.training.objective import Evaluation
from worker.training.progress import TrainingProgress


class Validation:
    """Evaluates the validation splits and remembers the last result with its step."""

    def __init__(
        self, evaluator: Evaluator, progress: TrainingProgress, folder: Path, splits: frozenset[str]
    ) -> None:
        self.evaluator = evaluator
        self._splits = sorted(filter(is_validation, splits))
        self.given = bool(self._splits)
        self.test_given = "test" in splits
        self.folder = folder
        self._progress = progress
        self._last: tuple[int, Evaluation] | None = None
        self._dtype_changed = False

    def __call__(self) -> dict[str, float]:
        return self.run(self._progress.step).metrics

    def run(self, step: int) -> Evaluation:
        """Evaluate the loaded model, which is that of `step`."""
        metrics: dict[str, float] = {}
        files: dict[str, Path] = {}
        samples: list[dict[str, Any]] = []
        config: dict[str, Any] = {}
        for split in self._splits:
            result = self.evaluator(split, self.folder)
            assert result is not None, "asked for only where there is such a split"
            metrics |= result.metrics
            files |= result.files
            samples += result.samples
            config |= result.config
        whole = Evaluation(metrics, files, samples, config)
        self._last = (step, whole)
        return whole

    def change_dtype(self, dtype: torch.dtype, model: torch.nn.Module) -> None:
        """Evaluate in another dtype from now on; what is known of `model` no longer holds."""
        model.to(dtype)
        self._dtype_changed = True

    def known(self, step: int) -> Evaluation | None:
        """The last result, if it is that of `step`: its files still lie there."""
        if self._last is None or self._dtype_changed or not self.evaluated(step):
            return None
        return self._last[1]

    def evaluated(self, step: int) -> bool:
        """Whether the last evaluation was of this step, in whatever dtype."""
        return self._last is not None and self._last[0] == step
