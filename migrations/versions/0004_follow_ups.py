"""what a user asked of a job that had ended: promote a checkpoint, publish the model"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("follow_up", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    # Not in a batch: see 0002.
    op.drop_column("jobs", "follow_up")
