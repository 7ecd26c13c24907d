"""How long the steps of a Trainer take, for the reference side of benchmarks."""

import time
from typing import Any

from transformers import TrainerCallback


class StepClock(TrainerCallback):
    seconds = 0.0

    def on_train_begin(self, *_arguments: Any, **_more: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, *_arguments: Any, **_more: Any) -> None:
        self.seconds = time.perf_counter() - self._begun
