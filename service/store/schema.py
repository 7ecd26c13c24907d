"""The schema's version: bring a database up to it, or refuse another one."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, inspect, text

from service.store.database import shown_url
from service.store.tables.base import Base

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

# Alembic is imported where it is used: the API starts without it.
_MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
# Any number of processes may start at once; one migrates, the others wait for it.
_POSTGRES_LOCK = 0x46494E45
_RELEASE: Final = re.compile(r"\d+\.\d+")
_MOST_NAMED: Final = 3
_ANOTHER: Final = "start with a new home (FINETUNE_HOME) or a new database (FINETUNE_DATABASE_URL)"


class UnusableSchemaError(Exception):
    """A database of a pre-release, of a newer release, or of something else; the message says what
    to do."""

    def __init__(self, connection: Connection, why: str) -> None:
        super().__init__(f"the database {shown_url(connection.engine.url)} {why}")
        self.why = why
        """Without its name."""


def upgrade(engine: Engine) -> None:
    """Bring the database to the newest revision; safe to call from many processes at once.

    Raises UnusableSchemaError.
    """
    from alembic import command

    with _alembic(engine) as config:
        command.upgrade(config, "head")


def is_current(connection: Connection) -> bool:
    """Whether the database is at the newest revision."""
    return _revision(connection) == _scripts().get_current_head()


def require_upgradable(connection: Connection) -> None:
    """Raises UnusableSchemaError for a database that this release cannot upgrade."""
    require_release(connection)
    revision = _revision(connection)
    if revision is None:
        _require_free(connection)
    elif revision not in (script.revision for script in _scripts().walk_revisions()):
        raise UnusableSchemaError(
            connection,
            f"was made by a newer release of finetune (revision {revision}): install that release",
        )


def require_release(connection: Connection) -> None:
    """Raises UnusableSchemaError for a database of a pre-release or of another program. Newer
    releases pass."""
    revision = _revision(connection)
    if revision is None or _RELEASE.match(revision):
        return
    # Pre-releases numbered them: "0001" to "0021".
    if revision.isdecimal():
        raise UnusableSchemaError(
            connection,
            f"was made by a pre-release of finetune (revision {revision}), which this release does "
            f"not upgrade: {_ANOTHER}",
        )
    raise UnusableSchemaError(
        connection,
        f"was made by another program (revision {revision[:40]!r}): {_ANOTHER}",
    )


def _require_free(connection: Connection) -> None:
    """Raises UnusableSchemaError for tables of another program with the names of ours."""
    taken = sorted(set(inspect(connection).get_table_names()) & Base.metadata.tables.keys())
    if taken:
        names = ", ".join(f"`{name}`" for name in taken[:_MOST_NAMED])
        more = ", …" if len(taken) > _MOST_NAMED else ""
        raise UnusableSchemaError(
            connection, f"has tables of another program ({names}{more}): {_ANOTHER}"
        )


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


@contextmanager
def _alembic(engine: Engine) -> "Iterator[Config]":
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})
        require_upgradable(connection)
        config = _config()
        config.attributes["connection"] = connection
        yield config


def _scripts() -> "ScriptDirectory":
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
