"""files that expire, and uploads in parts"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime


def upgrade() -> None:
    op.add_column("files", sa.Column("expires_at", _Time(timezone=True), nullable=True))
    op.create_index(
        op.f("ix_files_expires_at"),
        "files",
        ["expires_at"],
        sqlite_where=sa.text("expires_at IS NOT NULL"),
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), server_default=sa.text("'default'"), nullable=False),
        sa.Column("filename", sa.String(500), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_expires_after", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("expires_at", _Time(timezone=True), nullable=False),
        sa.Column("part_ids", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("sha256", sa.String(64), nullable=True),
        sa.Column("file_id", sa.String(70), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_project_id_state"), "uploads", ["project_id", "state"])
    op.create_index(op.f("ix_uploads_expires_at"), "uploads", ["expires_at"])
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("upload_id", sa.String(40), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"],
            ["uploads.id"],
            name=op.f("fk_upload_parts_upload_id_uploads"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upload_parts")),
    )
    op.create_index(op.f("ix_upload_parts_upload_id"), "upload_parts", ["upload_id"])


def downgrade() -> None:
    op.drop_table("upload_parts")
    op.drop_table("uploads")
    op.drop_index(op.f("ix_files_expires_at"), table_name="files")
    op.drop_column("files", "expires_at")
