"""searches, their trials and what these reported; which job is a trial of which"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

import service.store.database

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Time = service.store.database.UtcDateTime


def upgrade() -> None:
    _searches()
    _trials()
    _reports()
    op.add_column("jobs", sa.Column("search_id", sa.String(40), nullable=True))
    op.add_column("jobs", sa.Column("trial", sa.Integer(), nullable=True))
    _index("ix_jobs_search_id_id", "jobs", ["search_id", "id"], "search_id IS NOT NULL")
    live = "search_id IS NOT NULL AND ended_at IS NULL"
    _index("ix_jobs_live_of_search", "jobs", ["search_id"], live)


def _searches() -> None:
    op.create_table(
        "searches",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), server_default=sa.text("'default'"), nullable=False),
        sa.Column("name", sa.String(200), nullable=True),
        sa.Column("task", sa.String(64), nullable=False),
        _json("spec", nullable=False),
        sa.Column("spec_version", sa.Integer(), nullable=False),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("updated_at", _Time(timezone=True), nullable=False),
        sa.Column("started_at", _Time(timezone=True), nullable=True),
        sa.Column("ended_at", _Time(timezone=True), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        _count("version"),
        sa.Column("max_trials", sa.Integer(), nullable=False),
        _count("made"),
        _count("reported"),
        _json("counts", nullable=False, server_default=sa.text("'{}'")),
        _list("best"),
        _list("best_scores"),
        _count("without_gain"),
        _json("study_state"),
        _json("waiting"),
        _json("failure"),
        _json("outcome"),
        sa.Column("look_at", _Time(timezone=True), nullable=False),
        sa.Column("idempotency_key", sa.String(255), nullable=True),
        sa.Column("request_sha256", sa.String(64), nullable=True),
        sa.Column("mlflow_experiment_id", sa.String(64), nullable=True),
        sa.Column("mlflow_run_id", sa.String(64), nullable=True),
        _count("tracked_version", "-1"),
        _flag("tracking_final"),
        sa.Column("tracking_retry_at", _Time(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_searches")),
    )
    _index("ix_searches_look_at", "searches", ["look_at"], "ended_at IS NULL")
    _index("ix_searches_untracked", "searches", ["tracking_retry_at"], "tracking_final = false")
    op.create_index(op.f("ix_searches_project_id_id"), "searches", ["project_id", "id"])
    op.create_index(op.f("ix_searches_state_id"), "searches", ["state", "id"])
    op.create_index(
        op.f("uq_searches_project_id_idempotency_key"),
        "searches",
        ["project_id", "idempotency_key"],
        unique=True,
    )


def _trials() -> None:
    op.create_table(
        "search_trials",
        sa.Column("search_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=True),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        _json("values", nullable=False),
        _json("scores"),
        sa.Column("score_step", sa.Integer(), nullable=True),
        _json("attrs", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        _json("failure"),
        _flag("is_held"),
        _count("seen_metrics"),
        sa.Column("created_at", _Time(timezone=True), nullable=False),
        sa.Column("ended_at", _Time(timezone=True), nullable=True),
        sa.Column("end_number", sa.Integer(), nullable=True),
        _flag("is_cleaned"),
        _of_search("search_trials"),
        sa.PrimaryKeyConstraint("search_id", "number", name=op.f("pk_search_trials")),
    )
    op.create_index(op.f("ix_search_trials_job_id"), "search_trials", ["job_id"])
    op.create_index(
        op.f("ix_search_trials_search_id_state_number"),
        "search_trials",
        ["search_id", "state", "number"],
    )
    _index(
        "ix_search_trials_uncleaned",
        "search_trials",
        ["search_id", "number"],
        "state = 'pruned' AND is_cleaned = false",
    )


def _reports() -> None:
    op.create_table(
        "search_reports",
        sa.Column("search_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("resource", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("at", _Time(timezone=True), nullable=False),
        _of_search("search_reports"),
        sa.PrimaryKeyConstraint("search_id", "number", "resource", name=op.f("pk_search_reports")),
    )
    op.create_index(
        op.f("uq_search_reports_search_id_seq"), "search_reports", ["search_id", "seq"], unique=True
    )


def _json(
    name: str, *, nullable: bool = True, server_default: sa.TextClause | None = None
) -> sa.Column[object]:
    return sa.Column(
        name, sa.JSON(none_as_null=True), nullable=nullable, server_default=server_default
    )


def _list(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(), server_default=sa.text("'[]'"), nullable=False)


def _count(name: str, start: str = "0") -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), server_default=sa.text(start), nullable=False)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), server_default=sa.text("false"), nullable=False)


def _of_search(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["search_id"],
        ["searches.id"],
        name=op.f(f"fk_{table}_search_id_searches"),
        ondelete="CASCADE",
    )


def _index(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    for index in ("ix_jobs_live_of_search", "ix_jobs_search_id_id"):
        op.drop_index(index, "jobs")
    for column in ("trial", "search_id"):
        op.drop_column("jobs", column)
    for table in ("search_reports", "search_trials", "searches"):
        op.drop_table(table)
