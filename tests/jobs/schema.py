"""The tables of a fresh database, as SQL."""

from pathlib import Path

from service.store.database import Database


def schema_statements(template: Path) -> list[str]:
    """The statements that build the schema."""
    source = Database(f"sqlite:///{template}")
    with source.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        statements = [sql for (sql,) in rows if "sqlite_" not in sql]
    source.dispose()
    return statements
