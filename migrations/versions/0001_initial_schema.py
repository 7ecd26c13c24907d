"""initial schema"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", service.store.database.UtcDateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=70), nullable=False),
        sa.Column("filename", sa.String(length=500), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("spec_version", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("created_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("phase", sa.String(length=32), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("last_metrics", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("results", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ended_at", service.store.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("queue", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("min_gpus", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("queued_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("not_before", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column(
            "next_publish_at", service.store.database.UtcDateTime(timezone=True), nullable=False
        ),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_id", sa.String(length=100), nullable=True),
        sa.Column("lease_until", service.store.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("stage_attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("crash_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("furthest_step", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("retry_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        sa.Column("timeout_seconds", sa.Integer(), nullable=True),
        sa.Column("used_seconds", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("metric_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("mlflow_experiment_id", sa.String(length=64), nullable=True),
        sa.Column("mlflow_run_id", sa.String(length=64), nullable=True),
        sa.Column("tracked_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "tracking_final", sa.Boolean(), server_default=sa.text("(false)"), nullable=False
        ),
        sa.Column(
            "tracking_retry_at", service.store.database.UtcDateTime(timezone=True), nullable=True
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(
            "ix_jobs_due",
            ["next_publish_at"],
            unique=False,
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )
        batch_op.create_index(
            "ix_jobs_leased",
            ["lease_until"],
            unique=False,
            sqlite_where=sa.text("lease_until IS NOT NULL"),
            postgresql_where=sa.text("lease_until IS NOT NULL"),
        )
        batch_op.create_index("ix_jobs_name_id", ["name", "id"], unique=False)
        batch_op.create_index("ix_jobs_state_id", ["state", "id"], unique=False)
        batch_op.create_index("ix_jobs_task_id", ["task", "id"], unique=False)
        batch_op.create_index(
            "ix_jobs_untracked",
            ["tracking_retry_at"],
            unique=False,
            sqlite_where=sa.text("tracking_final = false AND ended_at IS NOT NULL"),
            postgresql_where=sa.text("tracking_final = false AND ended_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_jobs_waiting",
            ["queue", "priority", "queued_at", "id"],
            unique=False,
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=100), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", sa.JSON(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("version", sa.String(length=32), nullable=False),
        sa.Column("started_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column(
            "last_seen_at", service.store.database.UtcDateTime(timezone=True), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "artifacts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=100), nullable=False),
        sa.Column("started_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("ended_at", service.store.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("resumed_from_step", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_attempts")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("metric", sa.Double(), nullable=True),
        sa.Column("best", sa.Boolean(), nullable=False),
        sa.Column("created_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("pruned_at", service.store.database.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
            name=op.f("fk_idempotency_keys_job_id_jobs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_keys_job_id"), ["job_id"], unique=False)

    op.create_table(
        "job_labels",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=512), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", "value", "job_id", name=op.f("pk_job_labels")),
    )
    with op.batch_alter_table("job_labels", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_labels_job_id"), ["job_id"], unique=False)

    op.create_table(
        "metrics",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("progress_epoch", sa.Double(), nullable=True),
        sa.Column("at", service.store.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_metrics_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_metrics")),
    )
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.create_index(
            "uq_metrics_job_id_kind_step", ["job_id", "kind", "step"], unique=True
        )


def downgrade() -> None:
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.drop_index("uq_metrics_job_id_kind_step")

    op.drop_table("metrics")
    with op.batch_alter_table("job_labels", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_job_labels_job_id"))

    op.drop_table("job_labels")
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_job_id"))

    op.drop_table("idempotency_keys")
    op.drop_table("events")
    op.drop_table("checkpoints")
    op.drop_table("attempts")
    op.drop_table("artifacts")
    op.drop_table("workers")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_jobs_waiting",
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )
        batch_op.drop_index(
            "ix_jobs_untracked",
            sqlite_where=sa.text("tracking_final = false AND ended_at IS NOT NULL"),
            postgresql_where=sa.text("tracking_final = false AND ended_at IS NOT NULL"),
        )
        batch_op.drop_index("ix_jobs_task_id")
        batch_op.drop_index("ix_jobs_state_id")
        batch_op.drop_index("ix_jobs_name_id")
        batch_op.drop_index(
            "ix_jobs_leased",
            sqlite_where=sa.text("lease_until IS NOT NULL"),
            postgresql_where=sa.text("lease_until IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_jobs_due",
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )

    op.drop_table("jobs")
    op.drop_table("files")
    op.drop_table("api_keys")
