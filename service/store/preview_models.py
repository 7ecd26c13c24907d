"""The rows of previews."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.base import Base
from service.store.owner_models import project_column


class PreviewRow(Base):
    """Like a job of one short stage: the row is the truth, a message only says to look at it."""

    __tablename__ = "previews"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """`preview-` and a time-ordered hex."""
    project_id: Mapped[str] = project_column()
    spec: Mapped[dict[str, Any]]
    options: Mapped[dict[str, Any]]
    """`PreviewOptions`."""
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    deadline_at: Mapped[datetime]
    """When an unfinished one has failed."""
    ended_at: Mapped[datetime | None]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    """When the row is removed."""
    next_publish_at: Mapped[datetime]
    """When the message of a queued one is sent again."""
    epoch: Mapped[int] = mapped_column(server_default=text("0"))
    """Attempts so far; every write of a running one carries it."""
    worker_id: Mapped[str | None] = mapped_column(String(100))
    lease_until: Mapped[datetime | None]
    failure: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]

    __table_args__ = (
        Index("ix_previews_project_id_id", "project_id", "id"),
        Index("ix_previews_state_id", "state", "id"),
    )
