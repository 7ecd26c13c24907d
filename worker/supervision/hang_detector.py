"""Decides whether a stage hangs, from its events and its CPU time."""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

import psutil

from service.contract.stage.events import PhaseChanged, Progress, StageEvent
from service.contract.states import Phase

MEDIANS: Final = 20
"""A step may take this many times the median of the steps before it."""
_REMEMBERED: Final = 101
_LEAST_SHARE: Final = 1e-3
"""Of one CPU: a stage that uses less and sends no event is idle."""


class HangDetector:
    """For one attempt. `cpu_seconds` returns the CPU time of the stage's processes so far.

    In a training that has made an optimizer step, the next one must follow within `hung_seconds` or
    20 median step times, whichever is longer. Otherwise any event or CPU time is activity:
    tokenization, pushes and metrics may send no event for a long time.
    """

    def __init__(self, hung_seconds: float, cpu_seconds: Callable[[], float], now: float) -> None:
        self._hung_seconds = hung_seconds
        self._cpu_seconds = cpu_seconds
        self._phase: Phase | None = None
        self._step: int | None = None
        """The last step since training began or resumed; None before the first progress event."""
        self._step_at = now
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)
        self._active_at = now
        self._cpu_seconds_before = 0.0
        self._cpu_checked_at = now

    def record(self, event: StageEvent, now: float) -> None:
        self._active_at = now
        if isinstance(event, PhaseChanged):
            # The time of an evaluation must not count as a step's.
            self._phase, self._step = event.phase, None
        elif isinstance(event, Progress) and self._phase is Phase.TRAINING:
            self._record_step(event.step, now)

    def _record_step(self, step: int, now: float) -> None:
        if self._step is not None and step > self._step:
            self._durations.append((now - self._step_at) / (step - self._step))
        if step != self._step:
            self._step, self._step_at = step, now

    def hang_message(self, now: float) -> str | None:
        """A sentence about how long the stage has been stuck; None while it is not."""
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
    """CPU time of the process and its living descendants; 0 if it has ended."""
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
    # Includes the time of children that have ended.
    return float(times.user + times.system + times.children_user + times.children_system)
