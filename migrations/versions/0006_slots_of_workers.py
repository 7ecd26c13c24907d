"""how many stages a worker runs at once

A waiting job says whether the workers that could run it are busy.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("slots", sa.Integer(), nullable=True))


def downgrade() -> None:
    # Not in a batch: see 0002.
    op.drop_column("workers", "slots")
