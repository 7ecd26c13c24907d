"""which jobs begin with what other jobs have made"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "job_sources",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("source_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_sources_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "source_id", name=op.f("pk_job_sources")),
    )
    op.create_index(op.f("ix_job_sources_source_id"), "job_sources", ["source_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_job_sources_source_id"), table_name="job_sources")
    op.drop_table("job_sources")
