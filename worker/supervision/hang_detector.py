"""Whether a stage still gets anywhere, by what it says and by the processor time it takes."""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

import psutil

from service.contract.events import PhaseChanged, Progress, StageEvent
from service.contract.states import Phase

MEDIANS: Final = 20
"""A step may take so many times the median of those before it."""
_REMEMBERED: Final = 101
_LEAST_SHARE: Final = 1e-3
"""Of one CPU: a stage that takes less, and says nothing, does nothing."""


class HangDetector:
    """Of one attempt. `cpu_seconds` is what the stage's processes have taken so far.

    While training it is the optimizer steps that count, once there was one; they come at least
    every `hung_seconds`, or every 20 medians where that is longer. Otherwise it is any event, and
    processor time: what tokenises, pushes or computes a metric has nothing to say for long.
    """

    def __init__(self, hung_seconds: float, cpu_seconds: Callable[[], float], now: float) -> None:
        self._hung_seconds = hung_seconds
        self._cpu_seconds = cpu_seconds
        self._phase: Phase | None = None
        self._step: int | None = None
        """The last one in this round of training; None before its first progress."""
        self._step_at = now
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)
        self._active_at = now
        self._cpu_seconds_before = 0.0
        self._cpu_checked_at = now

    def record(self, event: StageEvent, now: float) -> None:
        self._active_at = now
        if isinstance(event, PhaseChanged):
            # An evaluation's time is no step's.
            self._phase, self._step = event.phase, None
        elif isinstance(event, Progress) and self._phase is Phase.TRAINING:
            self._record_step(event.step, now)

    def _record_step(self, step: int, now: float) -> None:
        if self._step is not None and step > self._step:
            self._durations.append((now - self._step_at) / (step - self._step))
        if step != self._step:
            self._step, self._step_at = step, now

    def hang_message(self, now: float) -> str | None:
        """What has not come for how long, as a sentence, when that is too long."""
        if self._phase is Phase.TRAINING and self._step is not None and self._durations:
            usual = median(self._durations)
            if now - self._step_at > max(self._hung_seconds, MEDIANS * usual):
                return (
                    f"No optimizer step for {now - self._step_at:.0f} s after step {self._step}; "
                    f"one takes {usual:.3g} s at the median."
                )
            return None
        self._check_cpu(now)
        if now - self._active_at > self._hung_seconds:
            phase = f" in phase `{self._phase}`" if self._phase else ""
            return f"The stage has done nothing for {now - self._active_at:.0f} s{phase}."
        return None

    def _check_cpu(self, now: float) -> None:
        if now - self._cpu_checked_at < self._hung_seconds / 10:
            return
        taken = self._cpu_seconds() - self._cpu_seconds_before
        if taken > _LEAST_SHARE * (now - self._cpu_checked_at):
            self._active_at = now
        self._cpu_seconds_before += taken
        self._cpu_checked_at = now


def cpu_seconds(pid: int) -> float:
    """Processor time of the process and its living descendants; 0 when it is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(_own_seconds(member) for member in family)


def _own_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    # Those of children that have ended are in here, too.
    return float(times.user + times.system + times.children_user + times.children_system)
