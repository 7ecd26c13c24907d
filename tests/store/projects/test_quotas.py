"""Quotas of queued jobs and bytes: never exceeded, however many ask at once."""

import pytest

from service.errors import QueueQuotaError, StorageQuotaError
from service.store.database import Database, db_now
from service.store.files import files
from service.store.jobs import state
from service.store.projects import quotas
from service.store.scope import EVERYTHING
from service.store.tables.files import FileRow
from service.store.tables.jobs import ArtifactRow
from tests.support.factories import make_spec
from tests.support.store.job_rows import add_checkpoint, finished_job, put
from tests.support.store.projects import limit, make_job_of, make_project
from tests.support.threads import at_once


def add_file(database: Database, size: int, project: str = "default") -> str:
    file_id = files.new_id()
    with database.write() as session:
        quotas.require_room(session, project, size)
        session.add(
            FileRow(
                id=file_id,
                project_id=project,
                filename="a.jsonl",
                purpose="fine-tune",
                bytes=size,
                sha256="a" * 64,
                created_at=db_now(),
            )
        )
    return file_id


class TestQueuedJobs:
    def test_fifty_at_once_never_exceed_it(self, database: Database) -> None:
        limit(database, max_queued_jobs=7)

        def post() -> None:
            with database.write() as session:
                quotas.require_queue_room(session, ["default"])
                state.insert(session, state.new_job_id(), make_spec())

        raised = at_once(50, post)
        assert [type(error) for error in raised] == [QueueQuotaError] * 43

    def test_the_answer_has_the_numbers(self, database: Database) -> None:
        limit(database, max_queued_jobs=2)
        put(database, make_job_of(database, "default"), state="paused")
        make_job_of(database, "default")
        with database.write() as session, pytest.raises(QueueQuotaError) as raised:
            quotas.require_queue_room(session, ["default"])
        assert raised.value.detail == (
            "The project default may have 2 queued or paused jobs, and has 2. Wait until some "
            "have started, or cancel some."
        )
        assert raised.value.extra == {"quota": "max_queued_jobs", "limit": 2, "used": 2}

    def test_other_projects_and_running_jobs_do_not_count(self, database: Database) -> None:
        limit(database, max_queued_jobs=1)
        make_project(database, "other")
        make_job_of(database, "other")
        put(database, make_job_of(database, "default"), state="running")
        with database.write() as session:
            quotas.require_queue_room(session, ["default", "other"])
        with database.write() as session, pytest.raises(QueueQuotaError):
            quotas.require_queue_room(session, ["default", "default"])


class TestBytes:
    def test_uploads_at_once_never_exceed_it(self, database: Database) -> None:
        limit(database, max_bytes=1000)
        raised = at_once(20, lambda: add_file(database, 300))
        assert [type(error) for error in raised] == [StorageQuotaError] * 17
        with database.read() as session:
            assert quotas.stored_bytes(session, "default") == 900

    def test_checkpoints_and_artifacts_count_until_they_are_removed(
        self, database: Database
    ) -> None:
        job_id = finished_job(database)
        add_checkpoint(database, job_id, 1, bytes=100)
        add_checkpoint(database, job_id, 2, bytes=20, pruned_at=db_now())
        with database.write() as session:
            session.add(
                ArtifactRow(
                    job_id=job_id, name="m", path="m", bytes=7, sha256="a", created_at=db_now()
                )
            )
        add_file(database, 1000)
        with database.read() as session:
            assert quotas.stored_bytes(session, "default") == 1107
            assert quotas.stored_by_project(session, EVERYTHING) == {"default": 1107}
        put(database, job_id, workspace_pruned_at=db_now())
        with database.read() as session:
            assert quotas.stored_bytes(session, "default") == 1100

    def test_whether_a_project_stores_too_much(self, database: Database) -> None:
        add_file(database, 50)
        with database.read() as session:
            assert quotas.over_bytes(session, "default") is None
        limit(database, max_bytes=40)
        with database.read() as session:
            assert quotas.over_bytes(session, "default") == (50, 40)
