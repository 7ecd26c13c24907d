"""Registered workers."""

from datetime import datetime
from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base


class WorkerRow(Base):
    """A live Celery worker; renewed with every heartbeat."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(100), primary_key=True)
    hostname: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    queues: Mapped[list[Any]]
    devices: Mapped[list[Any]]
    """[{"type": "cpu", "name": …} | {"type": "cuda", "index": 0, "name": …, "memory_bytes": …}]"""
    slots: Mapped[int]
    """How many stages it runs at once."""
    has_hub_token: Mapped[bool]
    """Whether it can push to the Hub."""
    packages: Mapped[list[Any] | None]
    """Which of `worker_needs.PACKAGES` it has; None for a worker of 0.1.0, which does not report
    them."""
    version: Mapped[str] = mapped_column(String(32))
    started_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
    doctor: Mapped[dict[str, Any] | None]
    """{"status", "checked_at", "findings"} of its quick checks; None until they have ended."""
