"""clones, pruned workspaces, last use of uploads, and folders that wait to be removed"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime


def upgrade() -> None:
    op.create_table(
        "removals",
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_removals")),
    )
    op.add_column("jobs", sa.Column("cloned_from", sa.String(length=40), nullable=True))
    op.add_column("jobs", sa.Column("workspace_pruned_at", _Time(timezone=True), nullable=True))
    op.add_column("files", sa.Column("last_used_at", _Time(timezone=True), nullable=True))


def downgrade() -> None:
    # Not in batches: those build the table anew on SQLite, and dropping the old one takes every
    # row that refers to it along.
    op.drop_column("files", "last_used_at")
    op.drop_column("jobs", "workspace_pruned_at")
    op.drop_column("jobs", "cloned_from")
    op.drop_table("removals")
