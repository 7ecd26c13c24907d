"""The migrations build exactly what the models say."""

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from service.store import schema
from service.store.database import Database
from service.store.models import Base


class TestSchema:
    def test_migrated_database_is_current(self, database: Database) -> None:
        with database.engine.connect() as connection:
            assert schema.is_current(connection)

    def test_migrations_and_models_agree(self, database: Database) -> None:
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, Base.metadata) == []

    def test_upgrade_twice_changes_nothing(self, database: Database) -> None:
        schema.upgrade(database.engine)
        with database.engine.connect() as connection:
            assert schema.is_current(connection)

    def test_downgrade_leaves_nothing_and_upgrade_brings_it_back(self, database: Database) -> None:
        schema.downgrade(database.engine, "base")
        assert set(inspect(database.engine).get_table_names()) == {"alembic_version"}
        schema.upgrade(database.engine)
        assert set(inspect(database.engine).get_table_names()) >= set(Base.metadata.tables)
