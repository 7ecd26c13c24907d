"""New jobs are created once for each key, completely or not at all, and in groups."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import OperationalError

from service.contract.routing import Message, MessageKind
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.errors import (
    DataGoneError,
    DomainError,
    IdempotencyInFlightError,
    IdempotencyKeyReusedError,
    PriorityQuotaError,
    UploadInUseError,
)
from service.jobs import commands
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import GroupCommit, Submissions, Submitted
from service.settings import Settings
from service.store.database import Database, clock
from service.store.files import files
from service.store.jobs import idempotency, messages, queries, state
from service.store.projects import audit
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobLabelRow, JobRow
from service.store.tables.projects import DEFAULT_PROJECT
from tests.support.factories import add_file, make_spec, submit
from tests.support.servers.services import wait_until
from tests.support.store.databases import on_postgres
from tests.support.store.job_rows import get, history_of, put
from tests.support.store.projects import limit, make_project
from tests.support.store.statements import sent


def count(database: Database) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(JobRow)) or 0


class TestSubmit:
    def test_a_new_job_is_enqueued_once(self, database: Database) -> None:
        """Not by the same request with the same idempotency key."""
        enqueued: list[Message] = []

        class Noting(Dispatcher):
            def enqueue_soon(self, message: Message) -> None:
                enqueued.append(message)

        submissions = Submissions(database, Noting(Settings(redis_url=None)))
        spec = make_spec(priority=3)
        first, again = (submissions.submit(spec, idempotency_key="k") for _ in range(2))
        plain = submissions.submit(make_spec())
        assert (first.created, again.created) == (True, False)
        assert enqueued == [
            Message(MessageKind.JOB, first.job_id, "cpu", 3),
            Message(MessageKind.JOB, plain.job_id, "cpu", 5),
        ]

    def test_a_sent_message_is_not_sent_again_at_once(
        self, database: Database, broker_url: str
    ) -> None:
        sent = []

        class Answering(Dispatcher):
            def enqueue(self, message: Message) -> bool:
                # After commit: whoever is sent finds the job.
                sent.append((get(database, message.id).state, message.queue, message.priority))
                return True

        dispatcher = Answering(Settings(redis_url=broker_url))
        job_id = submit(database, dispatcher, make_spec(priority=3)).job_id
        dispatcher.close()
        assert sent == [("queued", "cpu", 3)]
        with database.read() as session:
            assert messages.due(session, 10) == []
        row = get(database, job_id)
        assert (row.next_publish_at - row.queued_at).total_seconds() == 5

    def test_more_than_can_be_sent_are_left_to_the_reconciler(
        self, database: Database, broker_url: str
    ) -> None:
        sent, may_send = [], threading.Event()

        class Slow(Dispatcher):
            def enqueue(self, message: Message) -> bool:
                may_send.wait(30)
                sent.append(message.id)
                return True

        dispatcher = Slow(Settings(redis_url=broker_url))
        made = [submit(database, dispatcher, make_spec()).job_id for _ in range(80)]
        may_send.set()
        dispatcher.close()
        # The one in hand and a backlog of 64; all are in the table, and due soon.
        assert sent in (made[:64], made[:65])

    @pytest.mark.parametrize("known_by", ["nothing", "key", "attempt"])
    def test_its_history_and_the_audit_log_say_where_it_comes_from(
        self, database: Database, unreachable: Dispatcher, known_by: str
    ) -> None:
        """One entry, however the job is made."""
        project = make_project(database, "other")
        database.before_commit = audit.record
        submissions = Submissions(database, unreachable)
        ways: dict[str, dict[str, Any]] = {
            "nothing": {},
            "key": {"idempotency_key": "k"},
            "attempt": {"attempt": submissions.attempt("a", 0, time.monotonic())},
        }
        notice = Notice(message="It is a clone.", data={"of": "job-1"})

        def make() -> Submitted:
            audit.begin(audit.Entry("clone_job", key_id="key-1"))
            return submissions.submit(
                make_spec(), project, cloned_from="job-1", notices=[notice], **ways[known_by]
            )

        job_id = Context().run(make).job_id
        row = get(database, job_id)
        assert (row.cloned_from, row.project_id) == ("job-1", project)
        reported = [(event.type, event.data) for event in history_of(database, job_id)[1:]]
        assert reported == [("notice", {"message": "It is a clone.", "data": {"of": "job-1"}})]
        with database.read() as session:
            entries, _ = audit.page(session, EVERYTHING, audit.Wanted(), after=None, limit=9)
        assert [(entry.action, entry.target, entry.project_id) for entry in entries] == [
            ("clone_job", job_id, project)
        ]


class TestIdempotency:
    def test_same_key_and_request_is_the_same_job(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        first = submit(database, unreachable, make_spec(), idempotency_key="k", request_sha256="a")
        second = submit(database, unreachable, make_spec(), idempotency_key="k", request_sha256="a")
        assert second == Submitted(first.job_id)
        assert count(database) == 1

    def test_without_a_digest_the_spec_is_compared(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        first = submit(database, unreachable, make_spec(name="a"), idempotency_key="k")
        assert (
            submit(database, unreachable, make_spec(name="a"), idempotency_key="k").job_id
            == first.job_id
        )
        with pytest.raises(IdempotencyKeyReusedError):
            submit(database, unreachable, make_spec(name="b"), idempotency_key="k")

    def test_same_key_with_another_request(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        submit(database, unreachable, make_spec(), idempotency_key="k", request_sha256="a")
        with pytest.raises(IdempotencyKeyReusedError):
            submit(database, unreachable, make_spec(), idempotency_key="k", request_sha256="b")
        assert count(database) == 1

    def test_the_job_is_found_before_the_body_is_read(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        submissions = Submissions(database, unreachable)
        made = submissions.submit(make_spec(), idempotency_key="k", request_sha256="a")
        other = make_project(database, "other")
        assert submissions.earlier(DEFAULT_PROJECT, "k", "a") == made.job_id
        assert submissions.earlier(DEFAULT_PROJECT, "l", "a") is None
        assert submissions.earlier(other, "k", "a") is None
        theirs = submissions.submit(make_spec(), other, idempotency_key="k", request_sha256="b")
        assert submissions.earlier(other, "k", "b") == theirs.job_id
        with pytest.raises(IdempotencyKeyReusedError):
            submissions.earlier(DEFAULT_PROJECT, "k", "b")

    def test_other_keys_and_no_key_make_other_jobs(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        for key in ("k", "l", None, None):
            assert submit(database, unreachable, make_spec(), idempotency_key=key).created
        assert count(database) == 4

    def test_many_at_once_make_one_job(self, database: Database, unreachable: Dispatcher) -> None:
        """Each gets the job or, on Postgres, the answer that the first is still in flight."""
        barrier = threading.Barrier(8)
        answers: list[Submitted | DomainError] = []

        def post() -> None:
            barrier.wait()
            try:
                answers.append(submit(database, unreachable, make_spec(), idempotency_key="k"))
            except IdempotencyInFlightError as error:
                answers.append(error)

        threads = [threading.Thread(target=post) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = [answer for answer in answers if isinstance(answer, Submitted)]
        assert len(answers) == 8
        assert [answer.created for answer in made].count(True) == 1
        assert len({answer.job_id for answer in made}) == 1
        assert count(database) == 1

    def test_in_flight_on_postgres(self, postgres_url: str, unreachable: Dispatcher) -> None:
        database = Database(postgres_url)
        with database.write() as session:
            assert idempotency.earlier_job(session, DEFAULT_PROJECT, "in-flight", "a") is None
            with pytest.raises(IdempotencyInFlightError):
                submit(database, unreachable, make_spec(), idempotency_key="in-flight")
            # Another key does not wait.
            assert submit(database, unreachable, make_spec(), idempotency_key="free").created
        database.dispose()


class TestAttempts:
    """Of a call that its client repeats without a key."""

    def test_began_when_the_headers_were_received(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        submissions = Submissions(database, unreachable)
        attempt = submissions.attempt("a", 2, time.monotonic() - 100)
        assert (attempt.request_sha256, attempt.count) == ("a", 2)
        with database.read() as session:
            waited = clock(session) - attempt.began_at
        assert waited.total_seconds() == pytest.approx(100, abs=5)

    def test_a_later_one_finds_the_job(self, database: Database, unreachable: Dispatcher) -> None:
        submissions = Submissions(database, unreachable)
        first, second, foreign = (
            submissions.attempt(request, count, time.monotonic())
            for request, count in (("a", 0), ("a", 1), ("b", 1))
        )
        made = submissions.submit(make_spec(), attempt=first)
        assert submissions.job_of_call(DEFAULT_PROJECT, first) is None, "of a call of its own"
        assert submissions.job_of_call(DEFAULT_PROJECT, foreign) is None
        assert submissions.job_of_call(make_project(database, "other"), second) is None
        assert submissions.job_of_call(DEFAULT_PROJECT, second) == made.job_id
        third = replace(second, count=2)
        assert submissions.submit(make_spec(), attempt=third) == Submitted(made.job_id)
        assert count(database) == 1


class TestPriorities:
    def test_a_job_that_names_none_has_the_most_urgent_of_its_project(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        limit(database, highest_priority=7)
        other = make_project(database, "other")
        usual = submit(database, unreachable, make_spec())
        low = submit(database, unreachable, make_spec(priority=8))
        theirs = submit(database, unreachable, make_spec(), project_id=other)
        made = [one.job and one.job.priority for one in (usual, low, theirs)]
        assert made == [7, 8, 5]
        assert [one.place and one.place.position for one in (usual, low)] == [1, 2]
        with pytest.raises(PriorityQuotaError):
            submit(database, unreachable, make_spec(priority=6))


class TestUploads:
    """A file that a job names is kept until the job has ended."""

    def spec_of(self, *ids: str) -> JobSpec:
        return make_spec(dataset={"source": "upload", "train": list(ids)})

    def test_a_file_that_went_after_the_examination(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        there, missing = add_file(database), files.new_id()
        with pytest.raises(DataGoneError) as caught:
            submit(database, unreachable, self.spec_of(there, missing), idempotency_key="k")
        assert caught.value.extra == {"missing": [missing]}
        assert count(database) == 0

    def test_one_that_may_wait_for_a_removal_is_not_grouped_with_others(
        self, database: Database, unreachable: Dispatcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They would have to wait as well."""
        submissions = Submissions(database, unreachable)
        grouped: list[JobSpec] = []
        run = submissions._group.run

        def note(new: Any) -> Submitted:
            grouped.append(new.spec)
            return run(new)

        monkeypatch.setattr(submissions._group, "run", note)
        plain = make_spec(name="plain")
        for spec in (self.spec_of(add_file(database)), plain):
            assert submissions.submit(spec).created
        assert grouped == [plain]

    def test_the_first_of_a_new_job_and_a_removal_decides(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        kept, removed = add_file(database), add_file(database)
        errors: list[DomainError] = []

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except DomainError as error:
                errors.append(error)

        def remove_kept() -> None:
            with database.write() as session:
                files.remove(session, EVERYTHING, kept)

        with database.write() as session:
            files.use(session, EVERYTHING, [kept])
            state.insert(session, state.new_job_id(), self.spec_of(kept))
            late = threading.Thread(target=attempt, args=(remove_kept,))
            late.start()
            late.join(0.3)
            assert late.is_alive()
        late.join(10)
        with database.write() as session:
            files.remove(session, EVERYTHING, removed)
            late = threading.Thread(
                target=attempt, args=(lambda: submit(database, unreachable, self.spec_of(removed)),)
            )
            late.start()
            late.join(0.3)
            assert late.is_alive()
        late.join(10)
        assert [type(error) for error in errors] == [UploadInUseError, DataGoneError]
        assert count(database) == 1


@contextmanager
def held(database: Database) -> Iterator[None]:
    """Block the creation of jobs meanwhile."""
    with database.write() as session:
        session.connection()  # on SQLite that is all
        if database.engine.dialect.name == "postgresql":
            session.execute(text("LOCK TABLE jobs IN EXCLUSIVE MODE"))
        yield


class Crowd:
    """Jobs that arrive while the previous one is still being created."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._submissions = Submissions(database, dispatcher)

    def submit(self, *specs: JobSpec) -> list[Submitted | Exception]:
        """The result of each."""
        with ThreadPoolExecutor(1 + len(specs)) as pool, held(self._database):
            first = pool.submit(self._submissions.submit, make_spec(name="first"))
            wait_until(self._submissions._group._turn.locked, 10, "the first")
            wait_until(lambda: self._waiting() == 0, 10, "the first")
            later = []
            for number, spec in enumerate(specs, 1):  # in this order
                later.append(pool.submit(self._submissions.submit, spec))
                wait_until(partial(self._waits, number), 10, "the others")
        place = first.result().place
        assert place is not None
        assert place.position == 1
        return [each.exception() or each.result() for each in later]  # type: ignore[misc]

    def _waiting(self) -> int:
        return len(self._submissions._group._waiting)

    def _waits(self, number: int) -> bool:
        return self._waiting() == number


@on_postgres
class TestLimits:
    def locked(self, statements: list[str]) -> list[str]:
        """The tables whose rows were locked, in this order."""
        found = (re.search(r"FROM (\w+).*FOR UPDATE", each, re.S) for each in statements)
        return [match.group(1) for match in found if match]

    def test_the_project_is_locked_after_files_and_jobs(
        self, database: Database, unreachable: Dispatcher, tmp_path: Path
    ) -> None:
        """In another order a new job and a retry could wait for each other."""
        limit(database, max_queued_jobs=1)
        spec = TestUploads().spec_of(add_file(database))
        with sent(database) as statements:
            made = submit(database, unreachable, spec)
        assert self.locked(statements) == ["files", "projects"]
        put(database, made.job_id, state="failed")
        settings = Settings(home=tmp_path)
        with sent(database) as statements:
            commands.retry(database, unreachable, settings, EVERYTHING, made.job_id)
        assert self.locked(statements) == ["jobs", "files", "projects"]

    def test_a_project_without_limits_is_neither_read_again_nor_locked(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        with sent(database) as statements:
            # Outside of any request: another test may have left one in this thread's context.
            Context().run(submit, database, unreachable, make_spec())
        limits, *inserts, webhooks = statements
        assert limits.split()[0] == "SELECT"
        assert [each.split()[:3] for each in inserts] == [
            ["INSERT", "INTO", table] for table in ("jobs", "events")
        ]
        assert webhooks.startswith("SELECT webhooks.")


class TestGroupCommit:
    def test_those_that_come_during_a_transaction_share_the_next(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        commits: list[Any] = []
        event.listen(database.engine, "commit", commits.append)
        specs = [make_spec(name=f"{n}", metadata={"n": f"{n}"}, priority=n) for n in (5, 5, 2, 7)]
        made: list[Any] = Crowd(database, unreachable).submit(*specs)
        assert len(commits) == 3  # the transactions of the test, of the first job, and of the four
        assert [one.place and one.place.position for one in made] == [3, 4, 1, 5]
        for one, spec in zip(made, specs, strict=True):
            row = get(database, one.job_id)
            assert (row.name, row.priority) == (spec.name, spec.priority)
            with database.read() as session:
                _, place = queries.job_in_queue(session, EVERYTHING, one.job_id)
                assert place is not None
                assert one.place is not None
                assert place.position == one.place.position
                events, _ = queries.events(session, EVERYTHING, one.job_id, after=0, limit=9)
                labels = session.scalars(
                    select(JobLabelRow.value).where(JobLabelRow.job_id == one.job_id)
                )
                assert ([event.type for event in events], list(labels)) == (
                    ["submitted"],
                    [spec.name],
                )

    def test_one_bad_submission_does_not_fail_the_others(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        wrong = make_spec(name="wrong").model_copy(update={"priority": "high"})
        made = Crowd(database, unreachable).submit(make_spec(), wrong, make_spec())
        good = [one for one in made if isinstance(one, Submitted)]
        assert [one.place and one.place.position for one in good] == [2, 3]
        assert isinstance(made[1], Exception)
        assert count(database) == 3

    def test_an_unreachable_database_is_tried_once(self) -> None:
        asked = []

        def do(given: list[int]) -> list[int]:
            asked.append(given)
            raise OperationalError("COMMIT", None, Exception("the connection is lost"))

        batch = [(number, Future[int]()) for number in range(3)]
        GroupCommit(do)._do_all(batch)
        # It is unknown whether it was committed: repeated, it might be done twice.
        assert asked == [[0, 1, 2]]
        assert all(isinstance(future.exception(), OperationalError) for _, future in batch)
