"""What the next attempt resumes from, and what an outage of the database costs."""

import pytest
from sqlalchemy import select

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.tables.jobs import CheckpointRow
from tests.supervision.support import attempt, children, meanwhile, run, started, supervisor
from tests.support.factories import claim_job, make_job
from tests.support.servers import services
from tests.support.store.databases import on_sqlite
from tests.support.store.flaky import Flaky
from tests.support.store.job_rows import failure_of, get, history_of, put

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.long]


class TestOutage:
    def test_a_short_one_loses_nothing(
        self, database: Database, settings: Settings, flaky: Flaky
    ) -> None:
        """The database is unreachable from the first event to the end of the stage."""
        job_id = make_job(database)
        run(database, settings, job_id)
        claimed = claim_job(flaky, job_id)

        def outage() -> None:
            flaky.is_unreachable = True
            services.wait_until(lambda: flaky.refused and not children(), 20, "the stage's end")
            flaky.is_unreachable = False

        thread = meanwhile(outage, when=started(settings, job_id, 2))
        assert supervisor(flaky, settings).supervise(claimed) is JobState.QUEUED
        thread.join()
        assert flaky.refused > 0
        assert get(database, job_id).stage == "publish"
        assert get(database, job_id).metric_seq == 3

    def test_an_end_whose_commit_got_no_answer_is_written_once(
        self, database: Database, settings: Settings, flaky: Flaky
    ) -> None:
        job_id = make_job(database)
        claimed = claim_job(flaky, job_id)
        flaky.loses_answer_of = "stage_finished"
        assert supervisor(flaky, settings).supervise(claimed) is JobState.QUEUED
        assert flaky.refused == 1
        types = [row.type for row in history_of(database, job_id)]
        assert types == ["submitted", "stage_started", "stage_finished"]

    def test_a_batch_whose_commit_got_no_answer_is_written_once(
        self, database: Database, settings: Settings, flaky: Flaky
    ) -> None:
        job_id = make_job(database)
        run(database, settings, job_id)
        claimed = claim_job(flaky, job_id)
        flaky.loses_answer_of = "notice"
        assert supervisor(flaky, settings).supervise(claimed) is JobState.QUEUED
        assert flaky.refused == 1
        types = [row.type for row in history_of(database, job_id)]
        assert types.count("notice") == 1
        assert types.count("checkpoint") == 3


@on_sqlite
class TestResume:
    def test_resumes_from_the_newest_checkpoint_that_verifies(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job(database, metadata={"stub.train": "segfault", "stub.attempts": "1"})
        run(database, settings, job_id)
        assert run(database, settings, job_id) is JobState.QUEUED
        newest = settings.workspace(job_id) / "attempts/2/checkpoints/3"
        (newest / "state").write_text("damaged")
        put(database, job_id, not_before=db_now())
        assert run(database, settings, job_id) is JobState.QUEUED
        assert attempt(database, job_id, 3).resumed_from_step == 2
        assert get(database, job_id).metric_seq == 3
        with database.read() as session:
            rows = session.scalars(select(CheckpointRow).order_by(CheckpointRow.step))
            paths = [row.path for row in rows]
        assert paths == [f"attempts/{n}/checkpoints/{s}" for n, s in [(2, 1), (2, 2), (3, 3)]]
        assert not newest.exists()

    def test_none_that_verifies(self, database: Database, settings: Settings) -> None:
        job_id = make_job(database, metadata={"stub.train": "segfault"})
        run(database, settings, job_id)
        run(database, settings, job_id)
        for folder in (settings.workspace(job_id) / "attempts/2/checkpoints").iterdir():
            (folder / "state").unlink()
        put(database, job_id, not_before=db_now())
        assert run(database, settings, job_id) is JobState.FAILED
        assert failure_of(database, job_id)["code"] == "checkpoint_unreadable"

    def test_leftovers_of_pruned_checkpoints_go(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job(database, training={"save_total_limit": 1})
        run(database, settings, job_id)
        run(database, settings, job_id)
        left = settings.workspace(job_id) / "attempts/2/checkpoints/1"
        left.mkdir()
        (settings.workspace(job_id) / "attempts/3").touch()
        assert run(database, settings, job_id) is JobState.FAILED, "no folder can be made"
        assert not left.exists(), "they may be what fills the disk"
        assert left.with_name("3").exists()
