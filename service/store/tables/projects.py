"""Rows of those who own jobs and files: projects, their members, API keys and sessions."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, String, text
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column

from service.contract.roles import DEFAULT_PROJECT as DEFAULT_PROJECT
from service.store.tables.base import Base, partial_index


def project_column(*, primary_key: bool = False) -> MappedColumn[str]:
    """The project that owns the row. No foreign key: SQLite cannot add one later, and projects
    never go away."""
    return mapped_column(
        String(40), primary_key=primary_key, server_default=text(f"'{DEFAULT_PROJECT}'")
    )


class ProjectRow(Base):
    """Owns jobs and files. A limit of null is none."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """`proj-` and hex, or `default`."""
    name: Mapped[str] = mapped_column(String(64), unique=True)
    mlflow_name: Mapped[str] = mapped_column(
        String(64),
        unique=True,
        index=True,
        insert_default=lambda context: context.get_current_parameters()["name"],
    )
    """The name that it was made with: its experiments and models in MLflow keep it."""
    created_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]
    """From then on it takes no new jobs and files."""
    weight: Mapped[float] = mapped_column(server_default=text("1"))
    """Its share of the workers, relative to the other projects' weights."""
    max_gpus: Mapped[int | None]
    """GPUs that its jobs may have at once."""
    max_queued_jobs: Mapped[int | None]
    max_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Of its files and its jobs' folders together."""
    max_requests_per_second: Mapped[float | None]
    highest_priority: Mapped[int | None]
    """The most urgent priority that its jobs may have: the smallest number."""


class MemberRow(Base):
    """A named person of a project. Keys of a member can do no more than the member."""

    __tablename__ = "members"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str] = mapped_column(String(200))
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]

    __table_args__ = (
        # A person who was removed may come back under the same name.
        partial_index(
            "uq_members_project_id_name",
            "project_id",
            "name",
            where="removed_at IS NULL",
            unique=True,
        ),
    )


class ApiKeyRow(Base):
    """The key itself is shown once and never stored."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    project_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """None: an operator's key."""
    role: Mapped[str] = mapped_column(String(16), server_default=text("'operator'"))
    member_id: Mapped[str | None] = mapped_column(String(40), index=True)
    scopes: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """None: all that the role may do."""
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class SessionRow(Base):
    """A browser's session on MLflow's pages. Its token is in the browser's cookie alone."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    # Sessions must not prevent an operator from emptying the table of keys in an emergency.
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
