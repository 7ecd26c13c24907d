"""The life of a trial of a search. A search itself has a job's states."""

from enum import StrEnum
from typing import Final


class TrialState(StrEnum):
    RUNNING = "running"
    """Its job waits or runs."""
    PAUSED = "paused"
    """It waits at a rung: it continues if it is among the best later."""
    COMPLETE = "complete"
    PRUNED = "pruned"
    """Ended early, because others were better."""
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER: Final = frozenset(
    {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED, TrialState.CANCELLED}
)
"""States in which a trial stays."""
