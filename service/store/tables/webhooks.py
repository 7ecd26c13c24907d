"""The rows of webhooks: a project's endpoints, and the outbox of what is sent to them."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base, partial_index
from service.store.tables.projects import project_column


class WebhookRow(Base):
    """An endpoint: where a project's events are sent."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """`webhook-` and a time-ordered hex."""
    project_id: Mapped[str] = project_column()
    url: Mapped[str] = mapped_column(Text)
    description: Mapped[str | None] = mapped_column(String(200))
    events: Mapped[list[Any]]
    """`EventFilter`s."""
    sealed: Mapped[str] = mapped_column(Text)
    """The secret, sealed with the operator's key (service/system/secret_box.py)."""
    previous_sealed: Mapped[str | None] = mapped_column(Text)
    previous_until: Mapped[datetime | None]
    """Until then the previous secret signs as well."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(String(16))
    failing_since: Mapped[datetime | None]
    """The first failure after the last success."""

    __table_args__ = (Index("ix_webhooks_project_id_id", "project_id", "id"),)


class DeliveryRow(Base):
    """An event for one receiver, written in the transaction of what it reports.

    No foreign key: an endpoint that is deleted at that moment must not fail a job's transaction.
    """

    __tablename__ = "webhook_deliveries"

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    """`delivery-` and a time-ordered hex."""
    project_id: Mapped[str] = project_column()
    webhook_id: Mapped[str | None] = mapped_column(String(40))
    """None: the receiver is named in the job's spec."""
    lane: Mapped[str] = mapped_column(String(48))
    """What waits together for one receiver: the endpoint, or a host that a project's specs name."""
    job_id: Mapped[str | None] = mapped_column(String(40))
    """None: a test. The job may be deleted since."""
    url: Mapped[str | None] = mapped_column(Text)
    """Of a spec."""
    secret_name: Mapped[str | None] = mapped_column(String(64))
    """Of a spec: the project's secret that signs."""
    event_id: Mapped[str] = mapped_column(String(80))
    event_type: Mapped[str] = mapped_column(String(48))
    payload: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    due_at: Mapped[datetime]
    """Of a pending one: the next try, or the end of the lease of the sender that has it."""
    epoch: Mapped[int] = mapped_column(server_default=text("0"))
    """Claims so far; the outcome of a try carries it."""
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    ended_at: Mapped[datetime | None]
    status: Mapped[int | None]
    """The last answer's."""
    answer: Mapped[str | None] = mapped_column(Text)
    """The beginning of the last answer."""
    error: Mapped[str | None] = mapped_column(String(300))
    """Why the last try failed."""

    __table_args__ = (
        partial_index("ix_webhook_deliveries_due", "lane", "due_at", where="state = 'pending'"),
        Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
        Index("ix_webhook_deliveries_job_id_id", "job_id", "id"),
        Index("ix_webhook_deliveries_ended_at", "ended_at"),
    )
