"""Uploaded files, and what is scheduled for removal."""

from datetime import datetime

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base, partial_index
from service.store.tables.projects import project_column


class FileRow(Base):
    """An uploaded data set; the bytes lie at `<home>/files/<id>`."""

    __tablename__ = "files"

    id: Mapped[str] = mapped_column(String(70), primary_key=True)
    project_id: Mapped[str] = project_column()
    filename: Mapped[str] = mapped_column(String(500))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    """When a job that names it was last made or retried."""
    expires_at: Mapped[datetime | None]
    """From then on only the jobs that named it before still see it."""

    __table_args__ = (
        Index("ix_files_project_id_id", "project_id", "id"),
        partial_index("ix_files_expires_at", "expires_at", where="expires_at IS NOT NULL"),
    )


class RemovalRow(Base):
    """A folder or file to remove, written in the transaction that schedules it, or before one that
    is to hold on to it: no crash forgets one."""

    __tablename__ = "removals"

    path: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Relative to FINETUNE_HOME."""
    created_at: Mapped[datetime]
    """From then on it is swept away; whoever wrote the row may be faster."""
