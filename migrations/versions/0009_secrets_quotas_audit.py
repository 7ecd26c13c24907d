"""shares, usage and secrets of projects; the audit log

Usage is counted from the upgrade on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime
_QUEUED = sa.text("state = 'queued'")

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
    # Not in a batch: see 0002.
    op.add_column("attempts", sa.Column("gpus", sa.Integer(), server_default="0", nullable=False))
    op.create_index(
        "ix_jobs_waiting_of_project",
        "jobs",
        ["queue", "project_id", "priority", "queued_at", "id"],
        sqlite_where=_QUEUED,
        postgresql_where=_QUEUED,
    )
    _create_shares_and_usage()
    _create_secrets()
    _create_audit_log()


def _create_shares_and_usage() -> None:
    op.create_table(
        "fair_shares",
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("pool", sa.String(8), nullable=False),
        sa.Column("virtual_seconds", sa.Double(), nullable=False),
        sa.Column("mean_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "pool", name=op.f("pk_fair_shares")),
    )
    counts = ("attempts", "succeeded", "failed", "cancelled")
    sums = ("gpu_microseconds", "worker_microseconds")
    op.create_table(
        "usage_days",
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        *(_counter(name, sa.BigInteger()) for name in sums),
        *(_counter(name, sa.Integer()) for name in counts),
        _counter("bytes_stored", sa.BigInteger()),
        sa.PrimaryKeyConstraint("project_id", "day", name=op.f("pk_usage_days")),
    )


def _counter(name: str, kind: sa.types.TypeEngine[int]) -> sa.Column[int]:
    return sa.Column(name, kind, server_default=sa.text("0"), nullable=False)


def _create_secrets() -> None:
    op.create_table(
        "secrets",
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("updated_at", _Time(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", name=op.f("pk_secrets")),
    )


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("at", _Time(timezone=True), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=True),
        sa.Column("key_id", sa.String(40), nullable=True),
        sa.Column("key_name", sa.String(200), nullable=True),
        sa.Column("role", sa.String(16), nullable=True),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(200), nullable=True),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("code", sa.String(64), nullable=True),
        sa.Column("client", sa.String(64), nullable=True),
        sa.Column("request_id", sa.String(128), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_project_id_id"), "audit_log", ["project_id", "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_POSTGRES_FUNCTION)
        op.execute(_POSTGRES_TRIGGER)
    else:
        for trigger in _SQLITE_TRIGGERS:
            op.execute(trigger)


def downgrade() -> None:
    op.drop_table("audit_log")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_log_is_append_only()")
    op.drop_table("secrets")
    op.drop_table("usage_days")
    op.drop_table("fair_shares")
    op.drop_index("ix_jobs_waiting_of_project", table_name="jobs")
    op.drop_column("attempts", "gpus")
