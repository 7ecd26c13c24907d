"""The job's row is the truth about the job; the rest is its history and output."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base, partial_index
from service.store.tables.projects import project_column


class JobRow(Base):
    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """`job-` and a time-ordered hex: sorting by id is sorting by creation."""
    project_id: Mapped[str] = project_column()
    name: Mapped[str | None] = mapped_column(String(200))
    task: Mapped[str] = mapped_column(String(64))
    spec: Mapped[dict[str, Any]]
    spec_version: Mapped[int]
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata")
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    cloned_from: Mapped[str | None] = mapped_column(String(40))
    """The job whose spec this one began as; it may be deleted since."""
    search_id: Mapped[str | None] = mapped_column(String(40))
    """The search that made it."""
    trial: Mapped[int | None]
    """Its number in the search; None: the search's best values trained again."""

    # Only one function in store/jobs/state.py writes `state`.
    state: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str] = mapped_column(String(16))
    phase: Mapped[str | None] = mapped_column(String(32))
    progress: Mapped[dict[str, Any] | None]
    last_metrics: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    failure: Mapped[dict[str, Any] | None]
    results: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    """Stage → its result as JSON."""
    follow_up: Mapped[dict[str, Any] | None]
    """What the user asked for after an end (contract/follow_up.py); None once it has succeeded."""
    ended_at: Mapped[datetime | None]
    workspace_pruned_at: Mapped[datetime | None]
    """When retention removed the files of an ended job; a retry clears it."""

    # The outbox: a queued row is a message to be sent when both times have passed.
    queue: Mapped[str] = mapped_column(String(16))
    priority: Mapped[int]
    min_gpus: Mapped[int] = mapped_column(server_default=text("0"))
    """GPUs that a worker must have to claim the waiting stage."""
    queued_at: Mapped[datetime]
    not_before: Mapped[datetime]
    next_publish_at: Mapped[datetime]

    # The claim: every write of a running stage carries `epoch`.
    epoch: Mapped[int] = mapped_column(server_default=text("0"))
    worker_id: Mapped[str | None] = mapped_column(String(100))
    lease_until: Mapped[datetime | None]
    stage_attempt: Mapped[int] = mapped_column(server_default=text("0"))
    """Attempts of the present stage, the running one included."""
    crash_count: Mapped[int] = mapped_column(server_default=text("0"))
    """Attempts in a row that died without progress."""
    furthest_step: Mapped[int] = mapped_column(server_default=text("0"))
    """Highest step of the present stage that any attempt reached; beyond it lies progress."""
    furthest_reference: Mapped[int] = mapped_column(server_default=text("0"))
    """Most features whose reference values any attempt had on disk; beyond it lies progress."""
    retry_count: Mapped[int] = mapped_column(server_default=text("0"))
    max_retries: Mapped[int]
    timeout_seconds: Mapped[int | None]
    used_seconds: Mapped[float] = mapped_column(server_default=text("0"))
    """Running time of the attempts that have ended."""

    # Numbering of history rows, without gaps.
    event_seq: Mapped[int] = mapped_column(server_default=text("0"))
    metric_seq: Mapped[int] = mapped_column(server_default=text("0"))

    # MLflow: what has been shipped. Behind metric_seq, or not final: there is work to do.
    mlflow_experiment_id: Mapped[str | None] = mapped_column(String(64))
    mlflow_run_id: Mapped[str | None] = mapped_column(String(64))
    tracked_seq: Mapped[int] = mapped_column(server_default=text("0"))
    tracking_final: Mapped[bool] = mapped_column(server_default=text("false"))
    """The run in MLflow carries the job's final status and all its numbers."""
    tracking_retry_at: Mapped[datetime | None]

    __table_args__ = (
        # What is due, in the order it is sent: small, because few jobs are queued.
        partial_index("ix_jobs_due", "next_publish_at", where="state = 'queued'"),
        partial_index(
            "ix_jobs_waiting", "queue", "priority", "queued_at", "id", where="state = 'queued'"
        ),
        # The first job of each project in a queue.
        partial_index(
            "ix_jobs_waiting_of_project",
            "queue",
            "project_id",
            "priority",
            "queued_at",
            "id",
            where="state = 'queued'",
        ),
        partial_index("ix_jobs_leased", "lease_until", where="lease_until IS NOT NULL"),
        partial_index(
            "ix_jobs_untracked",
            "tracking_retry_at",
            where="tracking_final = false AND ended_at IS NOT NULL",
        ),
        # Lists run newest first: by id.
        Index("ix_jobs_state_id", "state", "id"),
        Index("ix_jobs_task_id", "task", "id"),
        Index("ix_jobs_name_id", "name", "id"),
        Index("ix_jobs_project_id_id", "project_id", "id"),
        Index("ix_jobs_project_id_state_id", "project_id", "state", "id"),
        Index("ix_jobs_project_id_task_id", "project_id", "task", "id"),
        Index("ix_jobs_project_id_name_id", "project_id", "name", "id"),
        partial_index(
            "ix_jobs_live_of_search",
            "search_id",
            where="search_id IS NOT NULL AND ended_at IS NULL",
        ),
        partial_index("ix_jobs_search_id_id", "search_id", "id", where="search_id IS NOT NULL"),
    )


class JobLabelRow(Base):
    """`metadata` again, one row per pair, so that a filter by metadata uses an index."""

    __tablename__ = "job_labels"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(512), primary_key=True)
    job_id: Mapped[str] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class JobSourceRow(Base):
    """A job begins with what another one, the source, has made: it keeps that one's files."""

    __tablename__ = "job_sources"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    source_id: Mapped[str] = mapped_column(String(40), primary_key=True, index=True)
    """It may be deleted once the job has ended."""


class AttemptRow(Base):
    """One execution of a stage by one worker."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str] = mapped_column(String(16))
    number: Mapped[int]
    worker_id: Mapped[str] = mapped_column(String(100))
    gpus: Mapped[int] = mapped_column(server_default=text("0"))
    """How many it was given; without one it runs on the CPU."""
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str | None] = mapped_column(String(16))
    """`finished`, `failed`, `cancelled`, `lost`, `released`."""
    failure: Mapped[dict[str, Any] | None]
    resumed_from_step: Mapped[int | None]


class EventRow(Base):
    """Append-only history of a job."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    type: Mapped[str] = mapped_column(String(32))
    epoch: Mapped[int]
    data: Mapped[dict[str, Any]]


class MetricRow(Base):
    """All numbers of one kind at one step; the first writer wins, so a resume doubles nothing.

    Only a training that went back (`on_non_finite: rollback`) replaces a row, by one with a new
    number.
    """

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    step: Mapped[int]
    progress_epoch: Mapped[float | None]
    """Passes over the data so far; not the claim's epoch."""
    at: Mapped[datetime]
    values: Mapped[dict[str, Any]]

    __table_args__ = (Index("uq_metrics_job_id_kind_step", "job_id", "kind", "step", unique=True),)


class CheckpointRow(Base):
    __tablename__ = "checkpoints"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    path: Mapped[str] = mapped_column(Text)
    """Relative to the workspace."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    manifest_sha256: Mapped[str] = mapped_column(String(64))
    metric: Mapped[float | None]
    best: Mapped[bool]
    created_at: Mapped[datetime]
    pruned_at: Mapped[datetime | None]


class ArtifactRow(Base):
    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(500), primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    """Relative to the workspace."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class IdempotencyRow(Base):
    """Written in the transaction that makes the job, so neither exists without the other."""

    __tablename__ = "idempotency_keys"

    project_id: Mapped[str] = project_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]


class CreateCallRow(Base):
    """The attempts of a client's call that made the job; written in the same transaction."""

    __tablename__ = "create_calls"
    __table_args__ = (Index(None, "project_id", "request_sha256"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    project_id: Mapped[str] = project_column()
    request_sha256: Mapped[str] = mapped_column(String(64))
    first_count: Mapped[int]
    """How many attempts came before the first and the last one that arrived."""
    last_count: Mapped[int]
    created_at: Mapped[datetime]
    last_at: Mapped[datetime]
