"""whether a worker can push to the Hub

A job with a `hub` section is refused while no live worker has a token.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("has_hub_token", sa.Boolean(), nullable=True))


def downgrade() -> None:
    # Not in a batch: see 0002.
    op.drop_column("workers", "has_hub_token")
