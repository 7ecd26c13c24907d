"""what a worker found wrong with its machine when it started"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("doctor", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    # Not in a batch: see 0002.
    op.drop_column("workers", "doctor")
