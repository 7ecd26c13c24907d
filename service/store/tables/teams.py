"""Rows about projects: their shares of the workers, their usage, their secrets, the audit log."""

from datetime import datetime

from sqlalchemy import BigInteger, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base


class FairShareRow(Base):
    """What a project has had of a pool of workers (service/store/scheduling/fair_queue.py)."""

    __tablename__ = "fair_shares"

    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    pool: Mapped[str] = mapped_column(String(8), primary_key=True)
    virtual_seconds: Mapped[float]
    mean_seconds: Mapped[float]


class UsageDayRow(Base):
    """What a project has used on a day of UTC, in whole microseconds: sums are exact.

    No foreign key: deleting a job takes nothing off the bill.
    """

    __tablename__ = "usage_days"

    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    """`2026-01-31`."""
    gpu_microseconds: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    worker_microseconds: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    """Those that ended on this day."""
    succeeded: Mapped[int] = mapped_column(server_default=text("0"))
    """Jobs by how they ended on this day."""
    failed: Mapped[int] = mapped_column(server_default=text("0"))
    cancelled: Mapped[int] = mapped_column(server_default=text("0"))
    bytes_stored: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """The most that was seen on this day."""


class SecretRow(Base):
    """A secret of a project, sealed with the operator's key (service/system/secret_box.py)."""

    __tablename__ = "secrets"

    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    sealed: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class AuditRow(Base):
    """Who did what, when and from where. Triggers refuse every change of a row, and the removal of
    one that is younger than 30 days."""

    __tablename__ = "audit_log"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by time."""
    at: Mapped[datetime]
    project_id: Mapped[str | None] = mapped_column(String(40))
    """Whose project was acted in; None when it is not known, as without a valid key."""
    key_id: Mapped[str | None] = mapped_column(String(40))
    key_name: Mapped[str | None] = mapped_column(String(200))
    role: Mapped[str | None] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str | None] = mapped_column(String(200))
    outcome: Mapped[str] = mapped_column(String(16))
    """`done` or `refused`."""
    code: Mapped[str | None] = mapped_column(String(64))
    """Why it was refused, as in the answer."""
    client: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(128))

    __table_args__ = (Index("ix_audit_log_project_id_id", "project_id", "id"),)
