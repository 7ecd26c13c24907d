"""What a search has done so far, as its rules need it."""

from dataclasses import dataclass, field
from typing import Any

from service.contract.search.states import OVER, TrialState


@dataclass
class Trial:
    number: int
    """From 0, without gaps."""
    values: dict[str, Any]
    """Path → value of the spec, of the fields that vary in this trial."""
    state: TrialState = TrialState.RUNNING
    scores: list[float] | None = None
    """One for each objective, of a complete trial."""
    reports: dict[int, float] = field(default_factory=dict)
    """Resource (steps or epochs) → value of the objective there, in the order of the reports. With
    rungs, the resource is the rung's."""
    attrs: dict[str, Any] = field(default_factory=dict)
    """What Optuna notes about the trial, as JSON."""

    @property
    def is_over(self) -> bool:
        return self.state in OVER
