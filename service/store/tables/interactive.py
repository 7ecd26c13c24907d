"""The rows of previews and predictions."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String, text
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from service.store.tables.base import Base
from service.store.tables.projects import project_column


class BriefRow(Base):
    """Like a job of one short stage: the row is the truth, a message only says to look at it."""

    __abstract__ = True

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """`preview-` or `pred-`, and a time-ordered hex."""
    project_id: Mapped[str] = project_column()
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
    """Claims so far; every write of a running one carries it."""
    worker_id: Mapped[str | None] = mapped_column(String(100))
    lease_until: Mapped[datetime | None]
    failure: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Index, ...]:
        return (
            Index(f"ix_{cls.__tablename__}_project_id_id", "project_id", "id"),
            Index(f"ix_{cls.__tablename__}_state_id", "state", "id"),
        )


class PreviewRow(BriefRow):
    __tablename__ = "previews"

    spec: Mapped[dict[str, Any]]
    options: Mapped[dict[str, Any]]
    """`PreviewOptions`."""


class PredictionRow(BriefRow):
    __tablename__ = "predictions"

    request: Mapped[dict[str, Any]]
    """`PredictionRequest`, with the step of a checkpoint as a number, and with a seed."""
    model_key: Mapped[str] = mapped_column(String(64))
    """The same for predictions that one loaded model can answer."""
    crashes: Mapped[int] = mapped_column(server_default=text("0"))
    """Claims that ended because a process did; one that was released for a job does not count."""
    texts: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """The text of each choice, as far as it has been generated."""
