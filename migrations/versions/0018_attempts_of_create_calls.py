"""attempts of calls that create a job without an Idempotency-Key"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime


def upgrade() -> None:
    op.create_table(
        "create_calls",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), server_default=sa.text("'default'"), nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("first_count", sa.Integer(), nullable=False),
        sa.Column("last_count", sa.Integer(), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("last_at", _Time(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
            name=op.f("fk_create_calls_job_id_jobs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_create_calls")),
    )
    op.create_index(
        op.f("ix_create_calls_project_id_request_sha256"),
        "create_calls",
        ["project_id", "request_sha256"],
    )


def downgrade() -> None:
    op.drop_table("create_calls")
