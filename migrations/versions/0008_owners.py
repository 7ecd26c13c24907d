"""projects own jobs and files; keys have a project, a role, scopes and an expiry

What was there before belongs to the project `default`. Keys could do everything: they stay
operators' keys.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime
_NOW_MEMBER = sa.text("removed_at IS NULL")
_LISTS = {
    "jobs": (("id",), ("state", "id"), ("task", "id"), ("name", "id")),
    "files": (("id",),),
}


def upgrade() -> None:
    _create_projects()
    _create_members()
    for table, orders in _LISTS.items():
        # Not in a batch: see 0002.
        op.add_column(table, _project_id())
        for columns in orders:
            op.create_index(_list_index(table, columns), table, ["project_id", *columns])
    _extend_keys()
    with op.batch_alter_table("idempotency_keys") as batch:
        batch.add_column(_project_id())
        batch.drop_constraint(op.f("pk_idempotency_keys"), type_="primary")
        batch.create_primary_key(op.f("pk_idempotency_keys"), ["project_id", "key"])


def _project_id() -> sa.Column[str]:
    return sa.Column("project_id", sa.String(40), server_default="default", nullable=False)


def _list_index(table: str, columns: Sequence[str]) -> str:
    return op.f(f"ix_{table}_project_id_{'_'.join(columns)}")


def _create_projects() -> None:
    projects = op.create_table(
        "projects",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("archived_at", _Time(timezone=True), nullable=True),
        sa.Column("weight", sa.Double(), server_default=sa.text("1"), nullable=False),
        sa.Column("max_gpus", sa.Integer(), nullable=True),
        sa.Column("max_queued_jobs", sa.Integer(), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("max_requests_per_second", sa.Double(), nullable=True),
        sa.Column("highest_priority", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    now = service.store.database.db_now()
    default = sa.insert(projects).values(id="default", name="default", created_at=now)
    op.execute(default)


def _create_members() -> None:
    op.create_table(
        "members",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("removed_at", _Time(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_members_project_id_projects")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_members")),
    )
    op.create_index(
        "uq_members_project_id_name",
        "members",
        ["project_id", "name"],
        unique=True,
        sqlite_where=_NOW_MEMBER,
        postgresql_where=_NOW_MEMBER,
    )


def _extend_keys() -> None:
    for column in (
        sa.Column("project_id", sa.String(40), nullable=True),
        sa.Column("role", sa.String(16), server_default="operator", nullable=False),
        sa.Column("member_id", sa.String(40), nullable=True),
        sa.Column("scopes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("expires_at", _Time(timezone=True), nullable=True),
        sa.Column("last_used_at", _Time(timezone=True), nullable=True),
    ):
        op.add_column("api_keys", column)
    op.create_index(op.f("ix_api_keys_project_id"), "api_keys", ["project_id"])
    op.create_index(op.f("ix_api_keys_member_id"), "api_keys", ["member_id"])


def downgrade() -> None:
    # An earlier release lets every key do everything and knows no expiry.
    op.execute(
        "DELETE FROM api_keys WHERE role <> 'operator' OR scopes IS NOT NULL"
        " OR expires_at IS NOT NULL OR project_id IS NOT NULL"
    )
    # Two projects may have used the same key.
    op.execute("DELETE FROM idempotency_keys WHERE project_id <> 'default'")
    with op.batch_alter_table("idempotency_keys") as batch:
        batch.drop_constraint(op.f("pk_idempotency_keys"), type_="primary")
        batch.drop_column("project_id")
        batch.create_primary_key(op.f("pk_idempotency_keys"), ["key"])
    op.drop_index(op.f("ix_api_keys_member_id"), table_name="api_keys")
    op.drop_index(op.f("ix_api_keys_project_id"), table_name="api_keys")
    for name in ("last_used_at", "expires_at", "scopes", "member_id", "role", "project_id"):
        op.drop_column("api_keys", name)
    for table, orders in _LISTS.items():
        for columns in orders:
            op.drop_index(_list_index(table, columns), table_name=table)
        op.drop_column(table, "project_id")
    op.drop_table("members")
    op.drop_table("projects")
