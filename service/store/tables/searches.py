"""The rows of searches."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base, partial_index
from service.store.tables.projects import project_column


class SearchRow(Base):
    """The row is the truth about the search; every change of it or of its trials, except what is
    shipped to MLflow, raises `version`."""

    __tablename__ = "searches"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """`search-` and a time-ordered hex."""
    project_id: Mapped[str] = project_column()
    name: Mapped[str | None] = mapped_column(String(200))
    task: Mapped[str] = mapped_column(String(64))
    spec: Mapped[dict[str, Any]]
    """`SearchSpec`; its `job` as the client gave it, without defaults."""
    spec_version: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    """When the first trial was made."""
    ended_at: Mapped[datetime | None]

    # Only one function in store/searches/state.py writes `state`.
    state: Mapped[str] = mapped_column(String(16))
    version: Mapped[int] = mapped_column(server_default=text("0"))
    max_trials: Mapped[int]
    """The spec's, or what it was extended to."""
    made: Mapped[int] = mapped_column(server_default=text("0"))
    """Trials so far: the next one's number."""
    reported: Mapped[int] = mapped_column(server_default=text("0"))
    """Reports so far: the last one's number."""
    counts: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    """State of a trial → how many are in it."""
    best: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    """Numbers of the best trial, or with several objectives of those that no other one beats."""
    best_scores: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    """The scores of each of these."""
    without_gain: Mapped[int] = mapped_column(server_default=text("0"))
    """Trials in a row that have ended since the best one did."""
    waiting: Mapped[dict[str, Any] | None]
    """{"code", "message"}: why it makes no trial at present."""
    failure: Mapped[dict[str, Any] | None]
    outcome: Mapped[dict[str, Any] | None]
    """{"action", "job_id"}: what became of the best trial."""
    look_at: Mapped[datetime]
    """When the reconciler makes its next pass over it."""

    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str | None] = mapped_column(String(64))

    # MLflow: behind `version`, or not final: there is work to do.
    mlflow_experiment_id: Mapped[str | None] = mapped_column(String(64))
    mlflow_run_id: Mapped[str | None] = mapped_column(String(64))
    tracked_version: Mapped[int] = mapped_column(server_default=text("-1"))
    tracking_final: Mapped[bool] = mapped_column(server_default=text("false"))
    tracking_retry_at: Mapped[datetime | None]

    __table_args__ = (
        partial_index("ix_searches_look_at", "look_at", where="ended_at IS NULL"),
        partial_index("ix_searches_untracked", "tracking_retry_at", where="tracking_final = false"),
        Index("ix_searches_project_id_id", "project_id", "id"),
        Index("ix_searches_state_id", "state", "id"),
        Index(
            "uq_searches_project_id_idempotency_key", "project_id", "idempotency_key", unique=True
        ),
    )


class SearchTrialRow(Base):
    """A trial; it stays when its job is deleted, because later trials depend on it."""

    __tablename__ = "search_trials"

    search_id: Mapped[str] = mapped_column(
        ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """None when the spec refuses the combination of values."""
    origin: Mapped[str] = mapped_column(String(16))
    """`template`, `enqueued` or `sampled`."""
    state: Mapped[str] = mapped_column(String(16))
    values: Mapped[dict[str, Any]]
    """Path → value, of the fields that vary in this trial."""
    scores: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """One for each objective, of a complete trial."""
    score_step: Mapped[int | None]
    """The step of the evaluation that they are from."""
    attrs: Mapped[dict[str, Any]]
    """What Optuna notes about it."""
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it was pruned or failed."""
    failure: Mapped[dict[str, Any] | None]
    is_held: Mapped[bool] = mapped_column(server_default=text("false"))
    """Its job is paused because the whole search is."""
    seen_metrics: Mapped[int] = mapped_column(server_default=text("0"))
    """Number of the last metric of its job that the search has read."""
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    end_number: Mapped[int | None]
    """Its place in the order in which trials ended."""
    is_cleaned: Mapped[bool] = mapped_column(server_default=text("false"))
    """The checkpoints of a pruned trial were removed."""

    __table_args__ = (
        Index("ix_search_trials_search_id_state_number", "search_id", "state", "number"),
        partial_index(
            "ix_search_trials_uncleaned",
            "search_id",
            "number",
            where="state = 'pruned' AND is_cleaned = false",
        ),
    )


class SearchReportRow(Base):
    """What a trial had reached at a rung, or at an evaluation: each once, the first one counts."""

    __tablename__ = "search_reports"

    search_id: Mapped[str] = mapped_column(
        ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    resource: Mapped[int] = mapped_column(primary_key=True)
    """Of the rung, in steps or epochs; without rungs, of the evaluation."""
    seq: Mapped[int]
    """The order of the search's reports."""
    step: Mapped[int]
    """Of the evaluation."""
    value: Mapped[float | None]
    """None where it is not a number."""
    decision: Mapped[str] = mapped_column(String(16))
    """`continue`, `pause` or `prune`."""
    at: Mapped[datetime]

    __table_args__ = (Index("uq_search_reports_search_id_seq", "search_id", "seq", unique=True),)
