"""webhooks of projects, and the outbox of what is sent to them"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime


def _project() -> sa.Column[str]:
    return sa.Column(
        "project_id", sa.String(40), server_default=sa.text("'default'"), nullable=False
    )


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(40), nullable=False),
        _project(),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.String(200), nullable=True),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("previous_sealed", sa.Text(), nullable=True),
        sa.Column("previous_until", _Time(timezone=True), nullable=True),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("updated_at", _Time(timezone=True), nullable=False),
        sa.Column("disabled_at", _Time(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.String(16), nullable=True),
        sa.Column("failing_since", _Time(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_project_id_id"), "webhooks", ["project_id", "id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(48), nullable=False),
        _project(),
        sa.Column("webhook_id", sa.String(40), nullable=True),
        sa.Column("lane", sa.String(48), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("secret_name", sa.String(64), nullable=True),
        sa.Column("event_id", sa.String(80), nullable=False),
        sa.Column("event_type", sa.String(48), nullable=False),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("due_at", _Time(timezone=True), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("ended_at", _Time(timezone=True), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("error", sa.String(300), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["lane", "due_at"],
        sqlite_where=pending,
        postgresql_where=pending,
    )
    for columns in (["webhook_id", "id"], ["job_id", "id"], ["ended_at"]):
        name = f"ix_webhook_deliveries_{'_'.join(columns)}"
        op.create_index(op.f(name), "webhook_deliveries", columns)


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
