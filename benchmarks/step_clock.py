"""How long the steps of a Trainer take, for the reference side of benchmarks."""

import time
from typing import Any

from transformers import TrainerCallback


class StepClock(TrainerCallback):
    """Counts from the start, or from the end of the first `skipped` steps."""

    def __init__(self, skipped: int) -> None:
        self._skipped = skipped
        self.seconds = 0.0

    def on_train_begin(self, *_arguments: Any, **_more: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, *arguments: Any, **_more: Any) -> None:
        state = arguments[1]
        if state.global_step == self._skipped:
            self._begun = time.perf_counter()
        self.seconds = time.perf_counter() - self._begun
