"""0008: what was there before belongs to the default project, and keys stay operators' keys."""

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from service.store import keys, schema
from service.store.database import Database, db_now
from service.store.models import ApiKeyRow, FileRow, IdempotencyRow, JobRow, ProjectRow
from tests.api.factories import add_job

BEFORE = "0007"
NOW = "2026-01-01 00:00:00.000000"


@pytest.fixture
def earlier(database: Database) -> Iterator[Database]:
    """A database of the release before; up to date again afterwards, since Postgres is shared."""
    schema.downgrade(database.engine, BEFORE)
    yield database
    with database.write() as session:
        session.execute(text("DELETE FROM jobs"))
    schema.upgrade(database.engine)


def _fill(database: Database) -> None:
    """A job with an idempotency key, a file and an API key, as that release wrote them."""
    job = (
        "INSERT INTO jobs (id, task, spec, spec_version, metadata, created_at, updated_at, state,"
        " stage, queue, priority, queued_at, not_before, next_publish_at, max_retries)"
        " VALUES ('job-1', 't', '{}', 1, '{}', :at, :at, 'queued', 'prepare', 'cpu', 5, :at, :at,"
        " :at, 0)"
    )
    file = (
        "INSERT INTO files (id, filename, purpose, bytes, sha256, created_at)"
        " VALUES ('file-1', 'a.jsonl', 'fine-tune', 1, 'a', :at)"
    )
    used = "INSERT INTO idempotency_keys VALUES ('once', 'digest', 'job-1', :at)"
    key = "INSERT INTO api_keys (id, name, sha256, created_at) VALUES ('key-1', 'ci', 'b', :at)"
    with database.write() as session:
        for statement in (job, file, used, key):
            session.execute(text(statement), {"at": NOW})


class TestUpgrade:
    def test_rows_belong_to_the_default_project(self, earlier: Database) -> None:
        _fill(earlier)
        schema.upgrade(earlier.engine)
        with earlier.read() as session:
            assert session.get_one(JobRow, "job-1").project_id == "default"
            assert session.get_one(FileRow, "file-1").project_id == "default"
            assert session.get_one(IdempotencyRow, ("default", "once")).job_id == "job-1"
            project = session.get_one(ProjectRow, "default")
        assert (project.name, project.weight, project.max_gpus) == ("default", 1.0, None)

    def test_keys_stay_operators_keys(self, earlier: Database) -> None:
        _fill(earlier)
        schema.upgrade(earlier.engine)
        with earlier.read() as session:
            key = session.get_one(ApiKeyRow, "key-1")
        assert (key.role, key.project_id, key.scopes) == ("operator", None, None)
        assert key.expires_at is None


class TestDowngrade:
    def test_a_narrow_key_does_not_become_a_key_to_everything(self, database: Database) -> None:
        with database.write() as session:
            operators = keys.create(session, "up")[0].id
            for name, given in (
                ("project", {"role": "member", "project_id": "default"}),
                ("scopes", {"scopes": ["jobs:read"]}),
                ("short", {"expires_at": db_now(3600)}),
            ):
                session.add(
                    ApiKeyRow(
                        id=f"key-{name}", name=name, sha256=name, created_at=db_now(), **given
                    )
                )
        schema.downgrade(database.engine, BEFORE)
        with database.connect() as connection:
            assert connection.execute(text("SELECT id FROM api_keys")).scalars().all() == [
                operators
            ]
        schema.upgrade(database.engine)

    def test_jobs_and_what_refers_to_them_stay(self, database: Database) -> None:
        job_id = add_job(database, metadata_={"team": "search"})
        with database.write() as session:
            for project in ("default", "proj-2"):
                session.add(
                    IdempotencyRow(
                        project_id=project,
                        key="same",
                        request_sha256="a",
                        job_id=job_id,
                        created_at=db_now(),
                    )
                )
        schema.downgrade(database.engine, BEFORE)
        with database.connect() as connection:
            labels = connection.execute(text("SELECT job_id FROM job_labels")).scalars().all()
            used = connection.execute(text("SELECT key, job_id FROM idempotency_keys")).all()
        assert labels == [job_id]
        assert [tuple(row) for row in used] == [("same", job_id)]
        schema.upgrade(database.engine)
        with database.read() as session:
            assert session.get_one(IdempotencyRow, ("default", "same")).job_id == job_id
