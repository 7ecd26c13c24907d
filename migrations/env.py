"""Alembic's entry: runs on the connection that service.store.schema hands over."""

from alembic import context

from service.settings import get_settings
from service.store.database import make_engine
from service.store.tables.base import Base


def run_migrations() -> None:
    """On the given connection, or (for `alembic revision`) on the one of the settings."""
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _migrate(connection)
        return
    with make_engine(get_settings().sqlalchemy_url).connect() as own:
        _migrate(own)
        own.commit()


def _migrate(connection: object) -> None:
    context.configure(
        connection=connection,  # type: ignore[arg-type]
        target_metadata=Base.metadata,
        # SQLite cannot ALTER in place. A batch builds the table anew, and dropping the old one
        # takes every row that refers to it along: add and drop columns outside of batches.
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
