"""The rows of uploads in parts."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base
from service.store.tables.projects import project_column


class UploadRow(Base):
    """A file that is sent in parts; they lie in `<home>/uploads/<id>`."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """`upload-` and a time-ordered hex."""
    project_id: Mapped[str] = project_column()
    filename: Mapped[str] = mapped_column(String(500))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    """Of the whole file, as announced."""
    file_expires_after: Mapped[int | None]
    """Seconds after the file's creation."""
    state: Mapped[str] = mapped_column(String(16))
    """`store.uploads.State`."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    part_ids: Mapped[list[Any] | None]
    """In the file's order, from the moment that the parts are checked."""
    sha256: Mapped[str | None] = mapped_column(String(64))
    file_id: Mapped[str | None] = mapped_column(String(70))

    __table_args__ = (Index("ix_uploads_project_id_state", "project_id", "state"),)


class UploadPartRow(Base):
    """A part that is on disk whole. Ended uploads have none."""

    __tablename__ = "upload_parts"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), index=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
