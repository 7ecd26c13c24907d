"""workers: which of the optional packages each has"""

import sqlalchemy as sa
from alembic import op

revision: str = "0.2.0"
down_revision: str | None = "0.1.0"


def upgrade() -> None:
    # Null: a worker of 0.1.0, which registers without it.
    op.add_column("workers", sa.Column("packages", sa.JSON(), nullable=True))
