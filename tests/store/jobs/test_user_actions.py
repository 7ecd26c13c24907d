"""Every user action in every state, and what it changes in the row and the history."""

from typing import Any

import pytest
from sqlalchemy import select, update

from service.contract.failures import Failure, FailureCode
from service.contract.routing import Message, MessageKind
from service.contract.states import ENDED, JobState, Stage
from service.store import removals
from service.store.database import Database, db_now
from service.store.jobs import claims, messages, user_actions
from service.store.jobs import state as jobs
from service.store.jobs.endings import Ending, end
from service.store.scope import EVERYTHING
from service.store.tables.base import Base
from service.store.tables.files import RemovalRow
from service.store.tables.jobs import ArtifactRow, AttemptRow, JobRow
from service.store.tracking import jobs as tracking
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.store.job_rows import get, history_of, put

PREPARED = {"prepared_dir": "/p", "model_revision": "c0ffee"}
TRAINED = {"output_dir": "attempts/2/output", "metrics": {"f1": 1.0}}


def act(database: Database, job_id: str, name: str, *arguments: Any) -> str:
    with database.write() as session:
        row = jobs.lock(session, EVERYTHING, job_id)
        assert row is not None
        state: str = getattr(user_actions, name)(session, row, *arguments)
    return state


def event_types(database: Database, job_id: str) -> list[str]:
    return [event.type for event in history_of(database, job_id)[1:]]


class TestEveryState:
    @pytest.mark.parametrize(
        ("name", "state", "after", "event"),
        [
            ("cancel", "queued", "cancelled", "cancelled"),
            ("cancel", "paused", "cancelled", "cancelled"),
            ("cancel", "running", "cancelling", "cancel_requested"),
            ("cancel", "pausing", "cancelling", "cancel_requested"),
            ("cancel", "cancelling", "cancelling", None),
            *(("cancel", state, state, None) for state in sorted(ENDED)),
            ("pause", "queued", "paused", "paused"),
            ("pause", "running", "pausing", "pause_requested"),
            *(("pause", state, state, None) for state in ("pausing", "paused", "cancelling")),
            *(("pause", state, state, None) for state in sorted(ENDED)),
            ("resume", "paused", "queued", "resume_requested"),
            ("resume", "pausing", "running", "resume_requested"),
            *(("resume", state, state, None) for state in ("queued", "running", "cancelling")),
            *(("resume", state, state, None) for state in sorted(ENDED)),
        ],
    )
    def test_next_state_and_event(
        self, sqlite_database: Database, name: str, state: str, after: str, event: str | None
    ) -> None:
        job_id = make_job(sqlite_database)
        put(sqlite_database, job_id, state=state)
        assert act(sqlite_database, job_id, name) == after
        assert get(sqlite_database, job_id).state == after
        assert event_types(sqlite_database, job_id) == ([event] if event else [])


class TestCancel:
    def test_a_waiting_job_ends_with_its_reason(self, database: Database) -> None:
        job_id = make_job(database)
        act(database, job_id, "cancel")
        row = get(database, job_id)
        assert row.failure is not None
        assert row.failure["code"] == "cancelled"
        assert row.ended_at is not None
        assert row.tracking_retry_at is not None


class TestPause:
    def test_no_worker_can_claim_a_paused_job_until_it_is_resumed(self, database: Database) -> None:
        job_id = make_job(database)
        act(database, job_id, "pause")
        with database.write() as session:
            found = claims.claim(
                session, job_id, "w", queues=["cpu", "gpu"], gpus=(), lease_seconds=60
            )
            assert found is None
            assert messages.due(session, 10) == []
        act(database, job_id, "resume")
        with database.read() as session:
            assert messages.due(session, 10) == [Message(MessageKind.JOB, job_id, "cpu", 5)]
        assert claim_job(database, job_id).epoch == 1

    def test_a_job_that_waited_for_a_retry_starts_at_once_when_resumed(
        self, database: Database
    ) -> None:
        job_id = make_job(database)
        put(database, job_id, state="paused", not_before=db_now(600), next_publish_at=db_now(600))
        act(database, job_id, "resume")
        with database.read() as session:
            assert len(messages.due(session, 10)) == 1

    @pytest.mark.parametrize(("resumed", "after"), [(False, "paused"), (True, "queued")])
    def test_a_stage_that_was_stopped_for_a_pause_taken_back_is_queued(
        self, database: Database, resumed: bool, after: str
    ) -> None:
        job_id = make_job(database)
        claim = claim_job(database, job_id)
        assert act(database, job_id, "pause") == "pausing"
        if resumed:
            assert act(database, job_id, "resume") == "running"
        with database.write() as session:
            assert end(session, job_id, claim.epoch, Ending.released(), POLICY) == after
        row = get(database, job_id)
        assert (row.state, row.crash_count, row.retry_count) == (after, 0, 0)


class TestRetry:
    def failed(self, database: Database, stage: Stage, **values: Any) -> str:
        job_id = make_job(database)
        put(
            database,
            job_id,
            **{
                "state": "failed",
                "stage": stage,
                "ended_at": db_now(),
                "failure": {"code": "timeout"},
                "results": {"prepare": PREPARED, "train": TRAINED},
                "epoch": 4,
                "stage_attempt": 3,
                "crash_count": 2,
                "furthest_step": 40,
                "retry_count": 3,
                "used_seconds": 99.5,
                "progress": {"step": 40, "of": 90},
                "tracking_final": True,
                "tracked_seq": 7,
                "metric_seq": 7,
                "mlflow_run_id": "abc",
                **values,
            },
        )
        return job_id

    def test_all_that_was_counted_begins_anew_and_the_run_stays(self, database: Database) -> None:
        job_id = self.failed(database, Stage.TRAIN)
        assert act(database, job_id, "retry", Stage.TRAIN, []) == "queued"
        row = get(database, job_id)
        assert (row.state, row.stage, row.queue, row.epoch) == ("queued", "train", "gpu", 4)
        counted = (row.stage_attempt, row.crash_count, row.furthest_step, row.retry_count)
        assert (counted, row.used_seconds) == ((0, 0, 0, 0), 0.0)
        assert (row.failure, row.ended_at, row.progress) == (None, None, None)
        assert (row.tracking_final, row.tracked_seq, row.mlflow_run_id) == (False, 7, "abc")
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data) == (
            "retried",
            {
                "from": "failed",
                "to": "queued",
                "stage": "train",
                "failed_stage": "train",
                "missing": [],
            },
        )
        with database.read() as session:
            assert [message.id for message in messages.due(session, 10)] == [job_id]
            assert tracking.untracked(session, 10) == []
        assert claim_job(database, job_id).epoch == 5

    def test_earlier_attempts_do_not_count_towards_the_new_time_limit(
        self, sqlite_database: Database
    ) -> None:
        job_id = make_job(sqlite_database)
        first = claim_job(sqlite_database, job_id)
        with sqlite_database.write() as session:
            session.execute(update(AttemptRow).values(started_at=db_now(-100)))
        timeout = Failure.from_code(FailureCode.TIMEOUT, "100 s")
        with sqlite_database.write() as session:
            end(session, job_id, first.epoch, Ending.failed(timeout), POLICY)
        assert get(sqlite_database, job_id).used_seconds == pytest.approx(100, abs=30)
        act(sqlite_database, job_id, "retry", Stage.PREPARE, [])
        again = claim_job(sqlite_database, job_id)
        assert (again.used_seconds, again.stage_used_seconds) == (0, 0)

    @pytest.mark.parametrize(
        ("stage", "kept"),
        [
            (Stage.PUBLISH, {"prepare": PREPARED, "train": TRAINED}),
            (Stage.TRAIN, {"prepare": PREPARED}),
            # The resolved revisions are kept, so that they are resolved the same again.
            (Stage.PREPARE, {"prepare": PREPARED}),
        ],
    )
    def test_results_of_later_stages_are_forgotten(
        self, database: Database, stage: Stage, kept: dict[str, Any]
    ) -> None:
        job_id = self.failed(database, Stage.PUBLISH)
        act(database, job_id, "retry", stage, ["finished_model"])
        row = get(database, job_id)
        assert (row.stage, row.results) == (stage, kept)
        assert (row.progress is None) == (stage is not Stage.PUBLISH)

    def test_artifacts_of_a_pruned_workspace_are_forgotten(self, database: Database) -> None:
        job_id = self.failed(database, Stage.TRAIN, workspace_pruned_at=db_now())
        with database.write() as session:
            session.add(
                ArtifactRow(
                    job_id=job_id, name="a", path="a", bytes=1, sha256="0", created_at=db_now()
                )
            )
        act(database, job_id, "retry", Stage.TRAIN, [])
        with database.read() as session:
            assert session.get(ArtifactRow, (job_id, "a")) is None
        assert get(database, job_id).workspace_pruned_at is None


class TestRemove:
    def test_nothing_refers_to_the_job_any_more(self, database: Database) -> None:
        other, job_id = make_job(database), make_job(database, metadata={"a": "b"})
        claim_job(database, job_id)
        claim_job(database, other)
        assert act(database, job_id, "remove") == f"jobs/{job_id}"
        with database.read() as session:
            assert session.scalars(select(JobRow.id)).all() == [other]
            for table in Base.metadata.sorted_tables:
                if "job_id" in table.c:
                    ids = set(session.scalars(select(table.c.job_id)))
                    assert ids <= {other}, table
            assert removals.due(session, 10) == [f"jobs/{job_id}"]

    def test_a_rolled_back_removal_removes_nothing(self, database: Database) -> None:
        job_id = make_job(database)

        def remove_and_fail() -> None:
            with database.write() as session:
                row = jobs.lock(session, EVERYTHING, job_id)
                assert row is not None
                user_actions.remove(session, row)
                raise RuntimeError

        with pytest.raises(RuntimeError):
            remove_and_fail()
        assert get(database, job_id).state == JobState.QUEUED
        with database.read() as session:
            assert session.scalars(select(RemovalRow.path)).all() == []
