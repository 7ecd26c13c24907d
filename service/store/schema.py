"""The schema's version: bring a database up to it, or say that it is behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, text

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported where it is used: the API starts without it.
_MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
# Any number of processes may start at once; one migrates, the others wait for it.
_POSTGRES_LOCK = 0x46494E45


def upgrade(engine: Engine) -> None:
    """Bring the database to the newest revision; safe to call from many processes at once."""
    from alembic import command

    with _alembic(engine) as config:
        command.upgrade(config, "head")


def downgrade(engine: Engine, revision: str) -> None:
    """Take the database back to `revision`; "base" is before the first."""
    from alembic import command

    with _alembic(engine) as config:
        command.downgrade(config, revision)


def is_current(connection: Connection) -> bool:
    """Whether the database is at the newest revision."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    heads = ScriptDirectory.from_config(_config()).get_heads()
    return set(MigrationContext.configure(connection).get_current_heads()) == set(heads)


@contextmanager
def _alembic(engine: Engine) -> "Iterator[Config]":
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})
        config = _config()
        config.attributes["connection"] = connection
        yield config


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
