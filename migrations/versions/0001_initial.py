"""the schema of release 0.1.0"""

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import JSON, BigInteger, Boolean, Double, Integer, String, Text

from service.store.database import db_now
from service.store.tables.base import NAMING_CONVENTION, UtcDateTime

# Not "0001", which was the first revision of the pre-releases.
revision: str = "0.1.0"
down_revision: str | None = None

_METADATA = sa.MetaData(naming_convention=NAMING_CONVENTION)
_required = partial(sa.Column, nullable=False)
_optional = partial(sa.Column, nullable=True)
_default = sa.text
_Time = UtcDateTime()


def _table(name: str, *items: sa.schema.SchemaItem) -> None:
    sa.Table(name, _METADATA, *items)


def _project(*, primary_key: bool = False) -> sa.Column[Any]:
    return _required(
        "project_id", String(40), primary_key=primary_key, server_default=_default("'default'")
    )


def _count(name: str) -> sa.Column[Any]:
    return _required(name, Integer(), server_default=_default("0"))


def _of(table: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.id", ondelete="CASCADE")


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


# ---- Jobs, with their outbox and their claims ---------------------------------------------------

_table(
    "jobs",
    _required("id", String(40), primary_key=True),
    _project(),
    _optional("name", String(200)),
    _required("task", String(64)),
    _required("spec", JSON()),
    _required("spec_version", Integer()),
    _required("metadata", JSON()),
    _required("created_at", _Time),
    _required("updated_at", _Time),
    _optional("cloned_from", String(40)),
    _optional("search_id", String(40)),
    _optional("trial", Integer()),
    _required("state", String(16)),
    _required("stage", String(16)),
    _optional("phase", String(32)),
    _optional("progress", JSON()),
    _required("last_metrics", JSON(), server_default=_default("'{}'")),
    _optional("failure", JSON()),
    _required("results", JSON(), server_default=_default("'{}'")),
    _optional("follow_up", JSON()),
    _optional("ended_at", _Time),
    _optional("workspace_pruned_at", _Time),
    _required("queue", String(16)),
    _required("priority", Integer()),
    _count("min_gpus"),
    _required("queued_at", _Time),
    _required("not_before", _Time),
    _required("next_publish_at", _Time),
    _count("epoch"),
    _optional("worker_id", String(100)),
    _optional("lease_until", _Time),
    _count("stage_attempt"),
    _count("crash_count"),
    _count("furthest_step"),
    _count("furthest_reference"),
    _count("retry_count"),
    _required("max_retries", Integer()),
    _optional("timeout_seconds", Integer()),
    _required("used_seconds", Double(), server_default=_default("0")),
    _count("event_seq"),
    _count("metric_seq"),
    _optional("mlflow_experiment_id", String(64)),
    _optional("mlflow_run_id", String(64)),
    _count("tracked_seq"),
    _required("tracking_final", Boolean(), server_default=_default("false")),
    _optional("tracking_retry_at", _Time),
    sa.Index("ix_jobs_due", "next_publish_at", **_where("state = 'queued'")),
    sa.Index("ix_jobs_leased", "lease_until", **_where("lease_until IS NOT NULL")),
    sa.Index(
        "ix_jobs_live_of_search",
        "search_id",
        **_where("search_id IS NOT NULL AND ended_at IS NULL"),
    ),
    sa.Index(None, "name", "id"),
    sa.Index(None, "project_id", "id"),
    sa.Index(None, "project_id", "name", "id"),
    sa.Index(None, "project_id", "state", "id"),
    sa.Index(None, "project_id", "task", "id"),
    sa.Index(None, "search_id", "id", **_where("search_id IS NOT NULL")),
    sa.Index(None, "state", "id"),
    sa.Index(None, "task", "id"),
    sa.Index(
        "ix_jobs_untracked",
        "tracking_retry_at",
        **_where("tracking_final = false AND ended_at IS NOT NULL"),
    ),
    sa.Index(
        "ix_jobs_waiting", "queue", "priority", "queued_at", "id", **_where("state = 'queued'")
    ),
    sa.Index(
        "ix_jobs_waiting_of_project",
        "queue",
        "project_id",
        "priority",
        "queued_at",
        "id",
        **_where("state = 'queued'"),
    ),
)

_table(
    "job_labels",
    _required("key", String(64), primary_key=True),
    _required("value", String(512), primary_key=True),
    _required("job_id", _of("jobs"), primary_key=True, index=True),
)

_table(
    "job_sources",
    _required("job_id", _of("jobs"), primary_key=True),
    _required("source_id", String(40), primary_key=True, index=True),
)

_table(
    "idempotency_keys",
    _project(primary_key=True),
    _required("key", String(255), primary_key=True),
    _required("request_sha256", String(64)),
    _required("job_id", _of("jobs"), index=True),
    _required("created_at", _Time),
)

_table(
    "create_calls",
    _required("job_id", _of("jobs"), primary_key=True),
    _project(),
    _required("request_sha256", String(64)),
    _required("first_count", Integer()),
    _required("last_count", Integer()),
    _required("created_at", _Time),
    _required("last_at", _Time),
    sa.Index(None, "project_id", "request_sha256"),
)

# ---- What jobs have done and made ---------------------------------------------------------------

_table(
    "attempts",
    _required("job_id", _of("jobs"), primary_key=True),
    _required("epoch", Integer(), primary_key=True),
    _required("stage", String(16)),
    _required("number", Integer()),
    _required("worker_id", String(100)),
    _count("gpus"),
    _required("started_at", _Time),
    _optional("ended_at", _Time),
    _optional("outcome", String(16)),
    _optional("failure", JSON()),
    _optional("resumed_from_step", Integer()),
)

_table(
    "events",
    _required("job_id", _of("jobs"), primary_key=True),
    _required("seq", Integer(), primary_key=True),
    _required("at", _Time),
    _required("type", String(32)),
    _required("epoch", Integer()),
    _required("data", JSON()),
)

_table(
    "metrics",
    _required("job_id", _of("jobs"), primary_key=True),
    _required("seq", Integer(), primary_key=True),
    _required("kind", String(8)),
    _required("step", Integer()),
    _optional("progress_epoch", Double()),
    _required("at", _Time),
    _required("values", JSON()),
    sa.Index("uq_metrics_job_id_kind_step", "job_id", "kind", "step", unique=True),
)

_table(
    "checkpoints",
    _required("job_id", _of("jobs"), primary_key=True),
    _required("step", Integer(), primary_key=True),
    _required("epoch", Integer()),
    _required("path", Text()),
    _required("bytes", BigInteger()),
    _required("manifest_sha256", String(64)),
    _optional("metric", Double()),
    _required("best", Boolean()),
    _required("created_at", _Time),
    _optional("pruned_at", _Time),
)

_table(
    "artifacts",
    _required("job_id", _of("jobs"), primary_key=True),
    _required("name", String(500), primary_key=True),
    _required("path", Text()),
    _required("bytes", BigInteger()),
    _required("sha256", String(64)),
    _required("created_at", _Time),
)

# ---- Searches -----------------------------------------------------------------------------------

_table(
    "searches",
    _required("id", String(40), primary_key=True),
    _project(),
    _optional("name", String(200)),
    _required("task", String(64)),
    _required("spec", JSON()),
    _required("spec_version", Integer()),
    _required("created_at", _Time),
    _required("updated_at", _Time),
    _optional("started_at", _Time),
    _optional("ended_at", _Time),
    _required("state", String(16)),
    _count("version"),
    _required("max_trials", Integer()),
    _count("made"),
    _count("reported"),
    _required("counts", JSON(), server_default=_default("'{}'")),
    _required("best", JSON(), server_default=_default("'[]'")),
    _required("best_scores", JSON(), server_default=_default("'[]'")),
    _count("without_gain"),
    _optional("waiting", JSON()),
    _optional("failure", JSON()),
    _optional("outcome", JSON()),
    _required("look_at", _Time),
    _optional("idempotency_key", String(255)),
    _optional("request_sha256", String(64)),
    _optional("mlflow_experiment_id", String(64)),
    _optional("mlflow_run_id", String(64)),
    _required("tracked_version", Integer(), server_default=_default("-1")),
    _required("tracking_final", Boolean(), server_default=_default("false")),
    _optional("tracking_retry_at", _Time),
    sa.Index(None, "look_at", **_where("ended_at IS NULL")),
    sa.Index(None, "project_id", "id"),
    sa.Index(None, "state", "id"),
    sa.Index("ix_searches_untracked", "tracking_retry_at", **_where("tracking_final = false")),
    sa.Index(
        "uq_searches_project_id_idempotency_key", "project_id", "idempotency_key", unique=True
    ),
)

_table(
    "search_trials",
    _required("search_id", _of("searches"), primary_key=True),
    _required("number", Integer(), primary_key=True),
    _optional("job_id", String(40), index=True),
    _required("origin", String(16)),
    _required("state", String(16)),
    _required("values", JSON()),
    _optional("scores", JSON()),
    _optional("score_step", Integer()),
    _required("attrs", JSON()),
    _optional("reason", Text()),
    _optional("failure", JSON()),
    _required("is_held", Boolean(), server_default=_default("false")),
    _count("seen_metrics"),
    _required("created_at", _Time),
    _optional("ended_at", _Time),
    _optional("end_number", Integer()),
    _required("is_cleaned", Boolean(), server_default=_default("false")),
    sa.Index(None, "search_id", "state", "number"),
    sa.Index(
        "ix_search_trials_uncleaned",
        "search_id",
        "number",
        **_where("state = 'pruned' AND is_cleaned = false"),
    ),
)

_table(
    "search_reports",
    _required("search_id", _of("searches"), primary_key=True),
    _required("number", Integer(), primary_key=True),
    _required("resource", Integer(), primary_key=True),
    _required("seq", Integer()),
    _required("step", Integer()),
    _optional("value", Double()),
    _required("decision", String(16)),
    _required("at", _Time),
    sa.Index("uq_search_reports_search_id_seq", "search_id", "seq", unique=True),
)

# ---- Previews and predictions -------------------------------------------------------------------

_table(
    "previews",
    _required("id", String(40), primary_key=True),
    _project(),
    _required("spec", JSON()),
    _required("options", JSON()),
    _required("state", String(16)),
    _required("created_at", _Time),
    _required("deadline_at", _Time),
    _optional("ended_at", _Time),
    _required("expires_at", _Time, index=True),
    _required("next_publish_at", _Time),
    _count("epoch"),
    _optional("worker_id", String(100)),
    _optional("lease_until", _Time),
    _optional("failure", JSON()),
    _optional("result", JSON()),
    sa.Index(None, "project_id", "id"),
    sa.Index(None, "state", "id"),
)

_table(
    "predictions",
    _required("id", String(40), primary_key=True),
    _project(),
    _required("request", JSON()),
    _required("model_key", String(64)),
    _required("state", String(16)),
    _required("created_at", _Time),
    _required("deadline_at", _Time),
    _optional("ended_at", _Time),
    _required("expires_at", _Time, index=True),
    _required("next_publish_at", _Time),
    _count("epoch"),
    _count("crashes"),
    _optional("worker_id", String(100)),
    _optional("lease_until", _Time),
    _optional("texts", JSON()),
    _optional("failure", JSON()),
    _optional("result", JSON()),
    sa.Index(None, "project_id", "id"),
    sa.Index(None, "state", "id"),
)

# ---- Uploads, and what is to be removed ---------------------------------------------------------

_table(
    "files",
    _required("id", String(70), primary_key=True),
    _project(),
    _required("filename", String(500)),
    _required("purpose", String(32)),
    _required("bytes", BigInteger()),
    _required("sha256", String(64)),
    _required("created_at", _Time),
    _optional("last_used_at", _Time),
    _optional("expires_at", _Time),
    sa.Index(None, "expires_at", **_where("expires_at IS NOT NULL")),
    sa.Index(None, "project_id", "id"),
)

_table(
    "uploads",
    _required("id", String(40), primary_key=True),
    _project(),
    _required("filename", String(500)),
    _required("purpose", String(32)),
    _required("bytes", BigInteger()),
    _optional("file_expires_after", Integer()),
    _required("state", String(16)),
    _required("created_at", _Time),
    _required("expires_at", _Time, index=True),
    _optional("part_ids", JSON()),
    _optional("sha256", String(64)),
    _optional("file_id", String(70)),
    sa.Index(None, "project_id", "state"),
)

_table(
    "upload_parts",
    _required("id", String(40), primary_key=True),
    _required("upload_id", _of("uploads"), index=True),
    _required("bytes", BigInteger()),
    _required("created_at", _Time),
)

_table(
    "removals",
    _required("path", String(200), primary_key=True),
    _required("created_at", _Time),
)

_table(
    "mlflow_removals",
    _required("run_id", String(64), primary_key=True),
    _optional("job_id", String(40)),
    _required("created_at", _Time),
    _required("retry_at", _Time, index=True),
)

# ---- Owners -------------------------------------------------------------------------------------

_table(
    "projects",
    _required("id", String(40), primary_key=True),
    _required("name", String(64), unique=True),
    _required("mlflow_name", String(64), unique=True, index=True),
    _required("created_at", _Time),
    _optional("archived_at", _Time),
    _required("weight", Double(), server_default=_default("1")),
    _optional("max_gpus", Integer()),
    _optional("max_queued_jobs", Integer()),
    _optional("max_bytes", BigInteger()),
    _optional("max_requests_per_second", Double()),
    _optional("highest_priority", Integer()),
)

_table(
    "members",
    _required("id", String(40), primary_key=True),
    _required("project_id", sa.ForeignKey("projects.id")),
    _required("name", String(200)),
    _required("role", String(16)),
    _required("created_at", _Time),
    _optional("removed_at", _Time),
    sa.Index(
        "uq_members_project_id_name",
        "project_id",
        "name",
        unique=True,
        **_where("removed_at IS NULL"),
    ),
)

_table(
    "api_keys",
    _required("id", String(40), primary_key=True),
    _required("name", String(200)),
    _required("sha256", String(64), unique=True),
    _required("created_at", _Time),
    _optional("revoked_at", _Time),
    _optional("project_id", String(40), index=True),
    _required("role", String(16), server_default=_default("'operator'")),
    _optional("member_id", String(40), index=True),
    _optional("scopes", JSON()),
    _optional("expires_at", _Time),
    _optional("last_used_at", _Time),
)

_table(
    "sessions",
    _required("id", String(40), primary_key=True),
    _required("sha256", String(64), unique=True),
    _required("key_id", _of("api_keys"), index=True),
    _required("created_at", _Time),
    _required("expires_at", _Time, index=True),
)

_table(
    "secrets",
    _required("project_id", String(40), primary_key=True),
    _required("name", String(64), primary_key=True),
    _required("sealed", Text()),
    _required("created_at", _Time),
    _required("updated_at", _Time),
)

# ---- Workers, and what projects have had of them ------------------------------------------------

_table(
    "workers",
    _required("id", String(100), primary_key=True),
    _required("hostname", String(255)),
    _required("pid", Integer()),
    _required("queues", JSON()),
    _required("devices", JSON()),
    _required("slots", Integer()),
    _required("has_hub_token", Boolean()),
    _required("version", String(32)),
    _required("started_at", _Time),
    _required("last_seen_at", _Time),
    _optional("doctor", JSON()),
)

_table(
    "fair_shares",
    _required("project_id", String(40), primary_key=True),
    _required("pool", String(8), primary_key=True),
    _required("virtual_seconds", Double()),
    _required("mean_seconds", Double()),
)

_table(
    "usage_days",
    _required("project_id", String(40), primary_key=True),
    _required("day", String(10), primary_key=True),
    _required("gpu_microseconds", BigInteger(), server_default=_default("0")),
    _required("worker_microseconds", BigInteger(), server_default=_default("0")),
    _count("attempts"),
    _count("succeeded"),
    _count("failed"),
    _count("cancelled"),
    _required("bytes_stored", BigInteger(), server_default=_default("0")),
)

# ---- Webhooks -----------------------------------------------------------------------------------

_table(
    "webhooks",
    _required("id", String(40), primary_key=True),
    _project(),
    _required("url", Text()),
    _optional("description", String(200)),
    _required("events", JSON()),
    _required("sealed", Text()),
    _optional("previous_sealed", Text()),
    _optional("previous_until", _Time),
    _required("created_at", _Time),
    _required("updated_at", _Time),
    _optional("disabled_at", _Time),
    _optional("disabled_reason", String(16)),
    _optional("failing_since", _Time),
    sa.Index(None, "project_id", "id"),
)

_table(
    "webhook_deliveries",
    _required("id", String(48), primary_key=True),
    _project(),
    _optional("webhook_id", String(40)),
    _required("lane", String(48)),
    _optional("job_id", String(40)),
    _optional("url", Text()),
    _optional("secret_name", String(64)),
    _required("event_id", String(80)),
    _required("event_type", String(48)),
    _required("payload", JSON()),
    _required("state", String(16)),
    _required("created_at", _Time),
    _required("due_at", _Time),
    _count("epoch"),
    _count("tries"),
    _optional("ended_at", _Time, index=True),
    _optional("status", Integer()),
    _optional("answer", Text()),
    _optional("error", String(300)),
    sa.Index("ix_webhook_deliveries_due", "lane", "due_at", **_where("state = 'pending'")),
    sa.Index(None, "job_id", "id"),
    sa.Index(None, "webhook_id", "id"),
)

# ---- The audit log ------------------------------------------------------------------------------

_table(
    "audit_log",
    _required("id", String(40), primary_key=True),
    _required("at", _Time),
    _optional("project_id", String(40)),
    _optional("key_id", String(40)),
    _optional("key_name", String(200)),
    _optional("role", String(16)),
    _required("action", String(64)),
    _optional("target", String(200)),
    _required("outcome", String(16)),
    _optional("code", String(64)),
    _optional("client", String(64)),
    _optional("request_id", String(128)),
    sa.Index(None, "project_id", "id"),
)

_POSTGRES_FUNCTION = """
CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < clock_timestamp() - interval '30 days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only';
END $$
"""
_POSTGRES_TRIGGER = """
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE ON audit_log
FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only()
"""
_SQLITE_TRIGGERS = (
    """
CREATE TRIGGER audit_log_keeps_rows BEFORE UPDATE ON audit_log
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
""",
    """
CREATE TRIGGER audit_log_keeps_young_rows BEFORE DELETE ON audit_log
WHEN OLD.at >= strftime('%Y-%m-%d %H:%M:%f', 'now', '-30 days')
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
""",
)


def upgrade() -> None:
    connection = op.get_bind()
    _METADATA.create_all(connection)
    default = {"id": "default", "name": "default", "mlflow_name": "default"}
    op.execute(sa.insert(_METADATA.tables["projects"]).values(**default, created_at=db_now()))
    is_postgres = connection.dialect.name == "postgresql"
    for statement in (_POSTGRES_FUNCTION, _POSTGRES_TRIGGER) if is_postgres else _SQLITE_TRIGGERS:
        op.execute(statement)
