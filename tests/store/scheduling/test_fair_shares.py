"""Shares and the quota of GPUs with real claims."""

from collections import Counter, deque

from sqlalchemy import select

from service.store.database import Database, db_now
from service.store.jobs import claims, endings
from service.store.jobs.claims import Claim
from service.store.jobs.endings import Ending
from service.store.scheduling.fair_queue import UNKNOWN_SECONDS
from service.store.tables.teams import FairShareRow
from tests.support.factories import POLICY
from tests.support.store.job_rows import get, put
from tests.support.store.projects import (
    began,
    claim_of,
    limit,
    make_job_of,
    make_project,
    try_to_claim,
)
from tests.support.threads import at_once


def end(database: Database, claimed: Claim, seconds: float) -> None:
    """End the attempt as if it had taken so long."""
    began(database, claimed, seconds)
    with database.write() as session:
        endings.end(session, claimed.job_id, claimed.epoch, Ending.cancelled(), POLICY)


def shares(database: Database) -> dict[tuple[str, str], float]:
    with database.read() as session:
        rows = session.scalars(select(FairShareRow))
        return {(row.project_id, row.pool): row.virtual_seconds for row in rows}


class TestWorkersWithoutGpus:
    def test_claims_follow_the_weights(self, database: Database) -> None:
        """One worker, which is woken by the messages of one project alone."""
        make_project(database, "heavy", weight=2)
        for project in ("heavy", "default"):
            for _ in range(30):
                make_job_of(database, project)
        woken_by = make_job_of(database, "default", priority=9)
        had: Counter[str] = Counter()
        for _ in range(30):
            with database.read() as session:
                chosen = claims.next_in(session, woken_by, "cpu")
            claimed = try_to_claim(database, chosen)
            assert claimed is not None
            end(database, claimed, 100)
            had[claimed.project_id] += 1
        assert had == {"heavy": 20, "default": 10}
        found = shares(database)
        assert abs(found["heavy", "cpu"] - 1000) < 1
        assert abs(found["default", "cpu"] - 1000) < 1

    def test_a_single_project_takes_the_job_whose_message_came(self, database: Database) -> None:
        make_project(database, "idle")
        first, woken_by = make_job_of(database, "default"), make_job_of(database, "default")
        with database.read() as session:
            assert claims.next_in(session, woken_by, "cpu") == woken_by
        assert get(database, first).state == "queued"

    def test_within_a_project_the_urgent_job_is_first(self, database: Database) -> None:
        make_project(database, "other")
        usual, urgent = make_job_of(database, "other"), make_job_of(database, "other", priority=1)
        claimed = claim_of(database)
        end(database, claimed, 50)
        late = make_job_of(database, "default", priority=0)
        with database.read() as session:
            assert claims.next_in(session, usual, "cpu") == urgent
            assert claims.next_in(session, late, "cpu") == urgent


class TestShares:
    def test_a_project_begins_where_the_one_with_the_least_is(self, database: Database) -> None:
        first = claim_of(database)
        end(database, first, 5000)
        claim_of(database)
        make_project(database, "late")
        claim_of(database, "late")
        begun = shares(database)["late", "cpu"]
        mean = UNKNOWN_SECONDS + 0.2 * (5000 - UNKNOWN_SECONDS)
        assert abs(begun - (5000 + mean)) < 5

    def test_a_project_without_jobs_keeps_no_credit(self, database: Database) -> None:
        make_project(database, "short")
        short = claim_of(database, "short")
        end(database, short, 10)
        put(database, short.job_id, state="cancelled")
        for _ in range(2):
            make_job_of(database, "default")
            busy = claim_of(database)
            end(database, busy, 4000)
        found = shares(database)
        assert found["short", "cpu"] == found["default", "cpu"] > 4000

    def test_pools_are_apart_and_gpus_count(self, database: Database) -> None:
        claimed = claim_of(database, gpus=4)
        end(database, claimed, 100)
        found = shares(database)
        assert set(found) == {("default", "gpu")}
        assert abs(found["default", "gpu"] - 400) < 4


class TestQuotaOfGpus:
    def test_claims_at_the_same_time_never_exceed_it(self, database: Database) -> None:
        limit(database, max_gpus=3)
        job_ids = [make_job_of(database, "default", gpus=1) for _ in range(12)]
        left, tried = deque(job_ids), list[Claim | None]()
        assert at_once(12, lambda: tried.append(try_to_claim(database, left.pop(), 1))) == []
        won = [claimed for claimed in tried if claimed is not None]
        assert len(won) == 3
        states = Counter(get(database, job_id).state for job_id in job_ids)
        assert states == {"running": 3, "queued": 9}
        end(database, won[0], 1)
        waits = next(job_id for job_id in job_ids if get(database, job_id).state == "queued")
        assert try_to_claim(database, waits, 1) is not None

    def test_a_job_over_the_quota_is_not_offered(self, database: Database) -> None:
        limit(database, max_gpus=2)
        make_project(database, "other")
        claim_of(database, gpus=2)
        mine = make_job_of(database, "default", gpus=1, priority=0)
        theirs = make_job_of(database, "other", gpus=1)
        with database.read() as session:
            found = claims.first_waiting(session, ["gpu", "gpu.2"])
            assert claims.first_of_project(session, "default") == mine
            assert claims.first_of_project(session, "other") is None
        assert [job.job_id for job in found] == [theirs]
        assert try_to_claim(database, mine, 1) is None
        assert get(database, mine).epoch == 0

    def test_a_job_that_somebody_else_has_taken(self, database: Database) -> None:
        limit(database, max_gpus=1)
        job_id = make_job_of(database, "default", gpus=1)
        put(database, job_id, state="paused")
        assert try_to_claim(database, job_id, 1) is None

    def test_without_gpus_nothing_is_counted(self, database: Database) -> None:
        limit(database, max_gpus=1)
        for _ in range(3):
            claim_of(database)

    def test_a_job_in_backoff_is_passed(self, database: Database) -> None:
        make_project(database, "other")
        waits, ready = make_job_of(database, "other"), make_job_of(database, "default")
        put(database, waits, not_before=db_now(60))
        with database.read() as session:
            assert claims.next_in(session, ready, "cpu") == ready
