"""What one pass over a search has decided: written in one transaction, or not at all."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from service.contract.failures import Failure
from service.contract.spec.spec import JobSpec
from service.contract.states import JobState

Origin = Literal["template", "enqueued", "sampled"]
ReportDecision = Literal["continue", "pause", "prune"]


@dataclass(frozen=True)
class NewTrial:
    number: int
    origin: Origin
    values: dict[str, Any]
    attrs: dict[str, Any]
    job_id: str | None
    spec: JobSpec | None
    """None when the spec refuses the combination of values."""


@dataclass(frozen=True)
class NewReport:
    number: int
    resource: int
    step: int
    value: float
    decision: ReportDecision
    at: datetime


@dataclass(frozen=True)
class Refit:
    job_id: str
    spec: JobSpec


@dataclass
class Plan:
    trials: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Number → columns that change."""
    made: list[NewTrial] = field(default_factory=list)
    reports: list[NewReport] = field(default_factory=list)
    pause: list[str] = field(default_factory=list)
    """Ids of jobs; likewise the next two."""
    resume: list[str] = field(default_factory=list)
    cancel: list[tuple[str, Failure]] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)
    """Columns of the search that change."""
    to: JobState | None = None
    publish: str | None = None
    """The job whose model the search pushes."""
    refit: Refit | None = None

    def change(self, number: int, **values: Any) -> None:
        self.trials.setdefault(number, {}).update(values)

    @property
    def is_empty(self) -> bool:
        return not any(vars(self).values())
