"""runs in MLflow whose files are to be removed"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime


def upgrade() -> None:
    op.create_table(
        "mlflow_removals",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=True),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("retry_at", _Time(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_mlflow_removals")),
    )
    op.create_index(op.f("ix_mlflow_removals_retry_at"), "mlflow_removals", ["retry_at"])


def downgrade() -> None:
    op.drop_table("mlflow_removals")
