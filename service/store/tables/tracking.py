"""Runs in MLflow that are to be removed."""

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables.base import Base


class MlflowRemovalRow(Base):
    """A run in MLflow whose files are to be removed (store/tracking/removals.py)."""

    __tablename__ = "mlflow_removals"

    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str | None] = mapped_column(String(40))
    """Of the job that stays and whose files were removed to make room. Null: job or search is
    deleted."""
    created_at: Mapped[datetime]
    retry_at: Mapped[datetime] = mapped_column(index=True)
