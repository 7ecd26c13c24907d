"""Workers that run the jobs of searches without training: they claim, report and end attempts with
the functions that real ones use, and compute the metric from the spec."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from service.contract.failures import Failure, FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Metric
from service.contract.states import JobState, Stage
from service.store.database import Database
from service.store.jobs import attempt_reports, claims, endings
from service.store.jobs.claims import Claim
from service.store.jobs.endings import Ending
from service.store.tables.jobs import JobRow
from tests.support.factories import POLICY

Score = Callable[[JobSpec, int], float]
"""Spec and step → the metric."""


def by_learning_rate(spec: JobSpec, step: int) -> float:
    """Best at 1e-4; better with every step."""
    off = abs(spec.training.learning_rate - 1e-4) / 1e-4
    return 1.0 - off / (1.0 + off) - 1.0 / (1 + step)


@dataclass
class SimulatedWorker:
    database: Database
    score: Score = by_learning_rate
    slots: int = 1
    steps: int = 30
    eval_steps: int = 10
    metric: str = "eval_f1"
    fails: Callable[[Claim], Failure | None] = lambda _claim: None
    running: dict[str, tuple[Claim, int]] = field(default_factory=dict)
    """Job → its claim, and the step that it has reached."""
    reached: dict[str, int] = field(default_factory=dict)
    """Job → the step of its checkpoint."""
    also: dict[str, Score] = field(default_factory=dict)
    """Other metrics that evaluations report."""
    home: Path | None = None
    """Where finished models are written."""
    hears_late: bool = False
    """A stop is seen only after one more evaluation, as by a supervisor that polls."""
    trained_steps: int = 0
    started: list[str] = field(default_factory=list)
    late: set[str] = field(default_factory=set)

    def tick(self) -> None:
        """Every running job makes one evaluation's steps; free slots claim waiting jobs."""
        for job_id in list(self.running):
            self._advance(job_id)
        for job_id in self._waiting() if len(self.running) < self.slots else ():
            if len(self.running) < self.slots:
                self._claim(job_id)

    def _waiting(self) -> list[str]:
        with self.database.read() as session:
            query = select(JobRow.id).where(JobRow.state == JobState.QUEUED)
            return list(session.scalars(query.order_by(JobRow.priority, JobRow.queued_at)))

    def _claim(self, job_id: str) -> None:
        with self.database.write() as session:
            claimed = claims.claim(
                session, job_id, "worker-1", queues=["cpu", "gpu"], gpus=(), lease_seconds=60
            )
        if claimed is not None:
            self.running[job_id] = (claimed, self.reached.get(job_id, 0))
            self.started.append(job_id)

    def _advance(self, job_id: str) -> None:
        claim, step = self.running[job_id]
        with self.database.read() as session:
            asked = claims.requested_state(session, job_id, claim.epoch)
        if self.hears_late and asked is JobState.PAUSING and job_id not in self.late:
            self.late.add(job_id)
            asked = JobState.RUNNING
        self.late -= {job_id} if asked is JobState.PAUSING else set()
        if asked is None or asked is JobState.CANCELLING:
            self._end(job_id, Ending.cancelled())
        elif asked is JobState.PAUSING:
            self.reached[job_id] = step
            self._end(job_id, Ending.released())
        elif failure := self.fails(claim):
            self._end(job_id, Ending.failed(failure))
        elif claim.stage is not Stage.TRAIN:
            self._end(job_id, Ending.finished({"prepared_dir": "prepared/data"}))
        else:
            self._train(job_id, claim, step + self.eval_steps)

    def _train(self, job_id: str, claim: Claim, step: int) -> None:
        self.trained_steps += self.eval_steps
        scores = {self.metric: self.score, **self.also}
        values = {name: score(claim.spec, step) for name, score in scores.items()}
        metric = Metric(kind="eval", step=step, epoch=step / 30, values=values)
        with self.database.write() as session:
            assert attempt_reports.record(session, job_id, claim.epoch, [metric]) is not None
        self.running[job_id] = (claim, step)
        if step >= self.steps:
            if self.home is not None:
                output = self.home / "jobs" / job_id / "attempts" / "2" / "output"
                output.mkdir(parents=True, exist_ok=True)
            result = {
                "output_dir": "attempts/2/output",
                "steps": step,
                "model_step": step,
                "metrics": values,
                "baseline": {},
                "weights_sha256": "a" * 64,
            }
            self._end(job_id, Ending.finished(result))

    def _end(self, job_id: str, ending: Ending) -> None:
        claim, _ = self.running.pop(job_id)
        with self.database.write() as session:
            endings.end(session, job_id, claim.epoch, ending, POLICY)


def missing_column(claim: Claim) -> Failure | None:
    """Every job's data lacks a column."""
    if claim.stage is Stage.PREPARE:
        return Failure.from_code(FailureCode.MISSING_COLUMN, "The data has no column `context`.")
    return None


def search_spec(**changes: Any) -> dict[str, Any]:
    """A search for the best learning rate; with other sections as given."""
    spec: dict[str, Any] = {
        "name": "rates",
        "job": {
            "task": "question-answering",
            "model": {"name_or_path": "org/model"},
            "dataset": {"source": "hub", "name": "org/data", "validation": "validation"},
            "training": {"max_steps": 30, "eval_strategy": "steps", "eval_steps": 10},
        },
        "space": {"training.learning_rate": {"low": 1e-6, "high": 1e-2, "log": True}},
        "objective": {"metric": "f1", "direction": "maximize"},
        "sampler": {"name": "random", "seed": 7},
        "max_trials": 6,
    }
    return spec | changes
