from itertools import product

import pytest
from sqlalchemy import event, select

from service.contract.routing import Message, MessageKind
from service.contract.states import TRANSITIONS, JobState
from service.store.database import Database, db_now, jsonable
from service.store.jobs import messages as job_messages
from service.store.jobs import state
from service.store.tables.jobs import JobLabelRow, JobRow
from service.store.tracking import jobs as tracking
from tests.support.factories import make_job, make_spec
from tests.support.store.job_rows import get, history_of, put


class TestNewJobId:
    def test_sorting_is_creation_order(self) -> None:
        ids = [state.new_job_id() for _ in range(100)]
        assert ids == sorted(ids)
        assert len(set(ids)) == 100
        assert all(len(job_id) <= 40 for job_id in ids)


class TestInsert:
    def test_row_labels_and_first_event(self, database: Database) -> None:
        job_id = make_job(database, name="one", priority=2, metadata={"team": "a", "run": "1"})
        row = get(database, job_id)
        assert (row.state, row.stage, row.queue, row.priority) == ("queued", "prepare", "cpu", 2)
        assert (row.name, row.task, row.epoch, row.min_gpus) == ("one", "question-answering", 0, 0)
        assert row.created_at == row.updated_at == row.queued_at == row.not_before
        with database.read() as session:
            labels = {(row.key, row.value) for row in session.scalars(select(JobLabelRow))}
        assert labels == {("team", "a"), ("run", "1")}
        [first] = history_of(database, job_id)
        assert (first.seq, first.type, first.epoch) == (1, "submitted", 0)
        assert first.data == {"to": "queued", "stage": "prepare"}

    def test_spec_comes_back_as_it_was(self, database: Database) -> None:
        spec = make_spec(training={"learning_rate": 0.1}, metadata={"a": "b"})
        job_id = make_job(database, training={"learning_rate": 0.1}, metadata={"a": "b"})
        assert type(spec).model_validate(get(database, job_id).spec) == spec


class TestMove:
    @pytest.mark.parametrize(("old", "new"), list(product(JobState, JobState)))
    def test_every_pair_of_states(self, sqlite_database: Database, old: str, new: str) -> None:
        """A transition that the table allows is written with its event; others are not."""
        database = sqlite_database
        job_id = make_job(database)
        put(database, job_id, state=old)
        allowed = new in TRANSITIONS[JobState(old)]
        with database.write() as session:
            if allowed:
                row = state.move(session, job_id, JobState(old), JobState(new), "test")
                assert row is not None
            else:
                with pytest.raises(ValueError, match=f"cannot go from {old} to {new}"):
                    state.move(session, job_id, JobState(old), JobState(new), "test")
        assert get(database, job_id).state == (new if allowed else old)
        events = [(row.type, row.data) for row in history_of(database, job_id)[1:]]
        data = {"from": old, "to": new, "stage": "prepare"}
        assert events == ([("test", data)] if allowed else [])

    def test_another_state_than_expected_changes_nothing(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, state=JobState.PAUSED)
        with database.write() as session:
            moved = state.move(session, job_id, JobState.QUEUED, JobState.RUNNING, "test", epoch=9)
        assert moved is None
        row = get(database, job_id)
        assert (row.state, row.epoch, row.event_seq) == ("paused", 0, 1)

    def test_condition_that_does_not_hold_changes_nothing(self, database: Database) -> None:
        job_id = make_job(database)
        with database.write() as session:
            guard = JobRow.epoch == 7
            moved = state.move(
                session, job_id, JobState.QUEUED, JobState.RUNNING, "test", guard, worker_id="w"
            )
        assert moved is None
        assert get(database, job_id).worker_id is None
        assert len(history_of(database, job_id)) == 1

    def test_a_rolled_back_move_leaves_no_event_and_no_gap(self, database: Database) -> None:
        job_id = make_job(database)

        def fail_after_move() -> None:
            with database.write() as session:
                state.move(session, job_id, JobState.QUEUED, JobState.PAUSED, "lost")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail_after_move()
        with database.write() as session:
            state.move(session, job_id, JobState.QUEUED, JobState.CANCELLED, "kept")
        assert [(e.seq, e.type) for e in history_of(database, job_id)] == [
            (1, "submitted"),
            (2, "kept"),
        ]


class TestOutbox:
    def test_due_in_the_order_of_priority_and_age(self, database: Database) -> None:
        low = make_job(database, priority=9)
        first = make_job(database, priority=0)
        second = make_job(database, priority=0)
        with database.read() as session:
            messages = job_messages.due(session, 10)
        assert messages == [
            Message(MessageKind.JOB, first, "cpu", 0),
            Message(MessageKind.JOB, second, "cpu", 0),
            Message(MessageKind.JOB, low, "cpu", 9),
        ]

    def test_only_waiting_jobs_that_may_start(self, database: Database) -> None:
        running, later, sent = (make_job(database) for _ in range(3))
        put(database, running, state=JobState.RUNNING)
        put(database, later, not_before=db_now(60))
        with database.write() as session:
            job_messages.mark_sent(session, [sent], 60)
        with database.read() as session:
            assert job_messages.due(session, 10) == []
            assert job_messages.message_if_due(session, later) is None
            assert job_messages.message_if_due(session, running) is None
            # A message that was sent may be sent by another, for another reason.
            assert job_messages.message_if_due(session, sent) == Message(
                MessageKind.JOB, sent, "cpu", 5
            )

    def test_sent_is_due_again_after_its_time(self, database: Database) -> None:
        job_id = make_job(database)
        with database.write() as session:
            job_messages.mark_sent(session, [job_id], -1)
        with database.read() as session:
            assert [message.id for message in job_messages.due(session, 10)] == [job_id]

    def test_untracked_are_ended_unfinished_and_due(self, database: Database) -> None:
        ended, final, later, living = (make_job(database) for _ in range(4))
        for job_id in (ended, final, later):
            put(database, job_id, ended_at=db_now(), tracking_retry_at=db_now(-1))
        put(database, final, tracking_final=True)
        with database.write() as session:
            tracking.postpone_tracking(session, [later], 60)
        with database.read() as session:
            assert tracking.untracked(session, 10) == [ended]
        assert get(database, living).tracking_final is False

    def test_searching_the_untracked_reads_no_other_job(self, sqlite_database: Database) -> None:
        statements: list[str] = []
        engine = sqlite_database.engine
        event.listen(engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
        with sqlite_database.read() as session:
            tracking.untracked(session, 10)
        [query] = [statement for statement in statements if statement.startswith("SELECT")]
        with engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", (10, 0)).all()
        assert "ix_jobs_untracked" in str(plan)


class TestJsonable:
    def test_non_finite_numbers_are_strings_that_float_reads(self) -> None:
        value = {"a": [float("nan"), float("inf"), 1.5], "b": {"c": float("-inf")}, "d": "text"}
        assert jsonable(value) == {"a": ["nan", "inf", 1.5], "b": {"c": "-inf"}, "d": "text"}
