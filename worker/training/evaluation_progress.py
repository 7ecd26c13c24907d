"""The progress of a job that does not train: one step per batch of its evaluation."""

import time
from collections.abc import Callable

from service.contract.events import Progress, StageEvent
from worker.training.reporting import SECONDS_BETWEEN_PROGRESS


class EvaluationProgress:
    """Call it after each batch; `total` is how many are expected."""

    def __init__(self, send: Callable[[StageEvent], None], total: int) -> None:
        self._send = send
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._sent = float("-inf")

    def __call__(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._sent >= SECONDS_BETWEEN_PROGRESS:
            self._sent = now
            self.report()

    def report(self) -> None:
        total = max(self._total, self._done)
        each = (time.monotonic() - self._began) / max(self._done, 1)
        left = each * (total - self._done) if self._done else None
        self._send(Progress(step=self._done, of=total, eta_seconds=left))
