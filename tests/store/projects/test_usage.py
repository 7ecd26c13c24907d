"""Usage: exact over midnights, crashes, lost workers, retries and deleted jobs."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from service.contract.failures import Failure, FailureCode
from service.store.database import Database, db_now
from service.store.jobs import endings, user_actions
from service.store.jobs.claims import Claim
from service.store.jobs.endings import Ending
from service.store.projects import usage
from service.store.scope import EVERYTHING, Scope
from service.store.tables.jobs import AttemptRow, JobRow
from service.store.tables.projects import ProjectRow
from service.store.tables.teams import UsageDayRow
from tests.support.factories import POLICY
from tests.support.store.databases import on_sqlite
from tests.support.store.job_rows import get, put
from tests.support.store.projects import began, claim_of, make_job_of, make_project, try_to_claim

ALWAYS = ("0001-01-01", "9999-12-31")


def end(database: Database, claimed: Claim, ending: Ending) -> None:
    with database.write() as session:
        endings.end(session, claimed.job_id, claimed.epoch, ending, POLICY)


def all_days(database: Database, scope: Scope = EVERYTHING) -> list[usage.Day]:
    with database.read() as session:
        return usage.days(session, scope, *ALWAYS)


def total(database: Database) -> usage.Used:
    found = usage.Used()
    for day in all_days(database):
        found += day.used
    return found


class TestByDay:
    def test_an_attempt_over_midnight_belongs_to_both_days(self) -> None:
        begin = datetime(2026, 1, 31, 23, 59, 59, 500_000, UTC)
        assert list(usage.by_day(begin, begin + timedelta(days=1, seconds=1))) == [
            ("2026-01-31", 500_000),
            ("2026-02-01", 86_400_000_000),
            ("2026-02-02", 500_000),
        ]

    def test_an_attempt_that_ends_before_it_begins_takes_nothing(self) -> None:
        """The lease of a worker that stopped right after its claim, by clocks that differ."""
        begin = datetime(2026, 1, 31, tzinfo=UTC)
        assert list(usage.by_day(begin, begin - timedelta(seconds=1))) == []

    @given(
        st.datetimes(datetime(2026, 1, 1), datetime(2026, 3, 1)),
        st.timedeltas(timedelta(0), timedelta(days=9)),
    )
    def test_no_microsecond_is_lost(self, begin: datetime, lasts: timedelta) -> None:
        aware = begin.replace(tzinfo=UTC)
        parts = list(usage.by_day(aware, aware + lasts))
        assert sum(taken for _, taken in parts) == lasts // timedelta(microseconds=1)
        assert len({day for day, _ in parts}) == len(parts)


class TestUsage:
    def test_gpus_and_workers_are_counted_apart(self, database: Database) -> None:
        on_gpus = claim_of(database, gpus=2)
        on_cpu = claim_of(database)
        for claimed in (on_gpus, on_cpu):
            began(database, claimed, 30)
            end(database, claimed, Ending.cancelled())
        found = total(database)
        assert found.gpu_microseconds / 1e6 == pytest.approx(60, abs=4)
        assert found.worker_microseconds / 1e6 == pytest.approx(30, abs=2)
        assert found.attempts == 2

    def test_what_runs_is_counted_while_it_runs(self, database: Database) -> None:
        claimed = claim_of(database, gpus=4)
        began(database, claimed, 1000)
        found = total(database)
        assert found.gpu_microseconds / 1e6 == pytest.approx(4000, abs=20)
        assert found.attempts == 0

    def test_a_lost_worker_is_charged_to_the_end_of_its_lease(self, database: Database) -> None:
        claimed = claim_of(database, gpus=1)
        began(database, claimed, 500)
        put(database, claimed.job_id, lease_until=claimed.started_at - timedelta(seconds=100))
        with database.write() as session:
            assert endings.expire(session, claimed.job_id, POLICY) is not None
        assert total(database).gpu_microseconds / 1e6 == pytest.approx(400, abs=0.01)

    def test_deleting_a_job_takes_nothing_off(self, database: Database) -> None:
        claimed = claim_of(database)
        began(database, claimed, 9)
        end(database, claimed, Ending.cancelled())
        before = total(database)
        with database.write() as session:
            session.execute(delete(JobRow).where(JobRow.id == claimed.job_id))
        assert total(database) == before
        assert before.worker_microseconds >= 9_000_000

    def test_jobs_by_how_they_ended(self, database: Database) -> None:
        failed = claim_of(database)
        end(database, failed, Ending.failed(Failure.from_code(FailureCode.EMPTY_DATASET, "none")))
        waiting = make_job_of(database, "default")
        with database.write() as session:
            user_actions.cancel(session, session.get_one(JobRow, waiting))
        found = total(database)
        assert (found.failed, found.cancelled, found.succeeded) == (1, 1, 0)

    def test_a_project_sees_its_own(self, database: Database) -> None:
        make_project(database, "other")
        for project in ("default", "other"):
            claimed = claim_of(database, project)
            end(database, claimed, Ending.cancelled())
        assert {day.project for day in all_days(database)} == {"default", "other"}
        assert {day.project for day in all_days(database, Scope("other"))} == {"other"}

    def test_the_most_that_was_stored_on_a_day_is_kept(self, database: Database) -> None:
        at = datetime(2026, 1, 31, 12, tzinfo=UTC)
        for size in (10, 30, 20):
            with database.write() as session:
                usage.note_bytes(session, {"default": size}, at)
        assert [(day.day, day.bytes_stored) for day in all_days(database)] == [("2026-01-31", 30)]


ENDINGS = ("finished", "failed", "crashed", "cancelled", "released", "lost")


class TestSums:
    @on_sqlite
    @settings(
        max_examples=15,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(ENDINGS),
                st.integers(0, 3),
                st.floats(0, 3 * 86400, allow_subnormal=False),
                st.sampled_from(["default", "other"]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def test_sums_over_attempts_equal_the_usage(
        self, database: Database, steps: list[tuple[str, int, float, str]]
    ) -> None:
        """Whatever ends the attempts, and however often a job is tried."""
        with database.write() as session:
            for table in (JobRow, UsageDayRow):
                session.execute(delete(table))
            session.merge(ProjectRow(id="other", name="other", created_at=db_now()))
        for how, gpus, seconds, project in steps:
            job_id = make_job_of(database, project, gpus=gpus)
            for _ in range(2):
                if get(database, job_id).state == "queued":
                    put(database, job_id, not_before=db_now(-1))
                    needed = gpus if "gpu" in get(database, job_id).queue else 0
                    _attempt(database, job_id, needed, how, seconds)
        assert _of_attempts(database) == {
            (day.project, day.day, kind): getattr(day.used, kind)
            for day in all_days(database)
            for kind in ("gpu_microseconds", "worker_microseconds")
            if getattr(day.used, kind)
        }


def _attempt(database: Database, job_id: str, gpus: int, how: str, seconds: float) -> None:
    claimed = try_to_claim(database, job_id, gpus)
    assert claimed is not None
    began(database, claimed, seconds)
    if how == "lost":
        until = claimed.started_at - timedelta(seconds=seconds / 2 + 1)
        put(database, job_id, lease_until=until)
        with database.write() as session:
            endings.expire(session, job_id, POLICY)
        return
    failures = {"failed": FailureCode.EMPTY_DATASET, "crashed": FailureCode.NETWORK}
    if how in failures:
        end(database, claimed, Ending.failed(Failure.from_code(failures[how], "why")))
    elif how == "finished":
        end(database, claimed, Ending.finished({}))
    else:
        end(database, claimed, Ending.cancelled() if how == "cancelled" else Ending.released())


def _of_attempts(database: Database) -> dict[tuple[str, str, str], int]:
    sums: Counter[tuple[str, str, str]] = Counter()
    with database.read() as session:
        query = select(AttemptRow, JobRow.project_id).join(JobRow, JobRow.id == AttemptRow.job_id)
        for attempt, project in session.execute(query):
            assert attempt.ended_at is not None
            kind = "gpu_microseconds" if attempt.gpus else "worker_microseconds"
            for day, taken in usage.by_day(attempt.started_at, attempt.ended_at):
                sums[project, day, kind] += taken * max(1, attempt.gpus)
    return {key: value for key, value in sums.items() if value}
