"""searches without a sampler's state"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.drop_column("searches", "study_state")


def downgrade() -> None:
    op.add_column("searches", sa.Column("study_state", sa.JSON(), nullable=True))
