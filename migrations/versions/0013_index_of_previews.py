"""an index of previews by state that SQLite uses, too"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.drop_index("ix_previews_unfinished", table_name="previews")
    op.create_index(op.f("ix_previews_state_id"), "previews", ["state", "id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_previews_state_id"), table_name="previews")
    unfinished = sa.text("state IN ('queued', 'running')")
    op.create_index(
        "ix_previews_unfinished",
        "previews",
        ["state"],
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
