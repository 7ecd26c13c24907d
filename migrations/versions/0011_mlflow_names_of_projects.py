"""names of projects in MLflow, which stay when a project is renamed"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Nullable, because SQLite can add no other column without a constant.
    op.add_column("projects", sa.Column("mlflow_name", sa.String(64), nullable=True))
    op.execute("UPDATE projects SET mlflow_name = name")
    op.create_index(op.f("ix_projects_mlflow_name"), "projects", ["mlflow_name"], unique=True)


def downgrade() -> None:
    op.drop_index(op.f("ix_projects_mlflow_name"), table_name="projects")
    op.drop_column("projects", "mlflow_name")
