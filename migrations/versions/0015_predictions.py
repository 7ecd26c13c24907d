"""predictions of finished models"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime


def upgrade() -> None:
    op.create_table(
        "predictions",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), server_default=sa.text("'default'"), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("model_key", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("deadline_at", _Time(timezone=True), nullable=False),
        sa.Column("ended_at", _Time(timezone=True), nullable=True),
        sa.Column("expires_at", _Time(timezone=True), nullable=False),
        sa.Column("next_publish_at", _Time(timezone=True), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("crashes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_id", sa.String(100), nullable=True),
        sa.Column("lease_until", _Time(timezone=True), nullable=True),
        sa.Column("texts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("failure", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_predictions")),
    )
    op.create_index(op.f("ix_predictions_project_id_id"), "predictions", ["project_id", "id"])
    op.create_index(op.f("ix_predictions_state_id"), "predictions", ["state", "id"])
    op.create_index(op.f("ix_predictions_expires_at"), "predictions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("predictions")
