import threading
from typing import Any

import pytest

from service.contract.spec.spec import SPEC_VERSION
from service.contract.states import JobState, Stage
from service.store.database import Database, clock, db_now
from service.store.jobs import claims
from service.store.jobs.claims import Claim
from service.store.scope import Scope
from service.store.tables.jobs import AttemptRow, JobRow
from tests.support.factories import claim_job, make_job, make_spec
from tests.support.servers.services import wait_until
from tests.support.store.databases import on_postgres, waits_for_a_lock
from tests.support.store.job_rows import get, history_of, put
from tests.support.store.projects import limit, make_job_of


def try_claim(
    database: Database,
    job_id: str,
    *,
    queues: tuple[str, ...] = ("cpu",),
    gpus: tuple[str, ...] = (),
) -> Claim | None:
    with database.write() as session:
        return claims.claim(session, job_id, "w", queues=queues, gpus=gpus, lease_seconds=60)


class TestClaim:
    def test_the_winner_gets_a_lease_and_an_epoch(self, database: Database) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        assert (claimed.epoch, claimed.stage, claimed.attempt) == (1, "prepare", 1)
        row = get(database, job_id)
        assert (row.state, row.epoch, row.worker_id) == ("running", 1, "worker-1")
        assert row.lease_until is not None
        lease = (row.lease_until - claimed.started_at).total_seconds()
        assert lease == pytest.approx(60, abs=0.5)
        with database.read() as session:
            attempt = session.get_one(AttemptRow, (job_id, 1))
        assert (attempt.stage, attempt.number, attempt.outcome) == ("prepare", 1, None)
        last = history_of(database, job_id)[-1]
        assert (last.type, last.epoch, last.data["worker"]) == ("stage_started", 1, "worker-1")

    def test_the_winner_knows_what_the_job_has_done(self, database: Database) -> None:
        job_id = make_job(database, name="known")
        done: dict[str, Any] = {
            "results": {"prepare": {"rows": 3}},
            "follow_up": {"action": "evaluate"},
        }
        put(database, job_id, used_seconds=7.5, created_at=db_now(-60), **done)
        claimed = claim_job(database, job_id)
        row = get(database, job_id)
        assert claimed == Claim(
            job_id=job_id,
            project_id="default",
            epoch=1,
            worker_id="worker-1",
            stage=Stage.PREPARE,
            attempt=1,
            spec=make_spec(name="known"),
            used_seconds=7.5,
            stage_used_seconds=0,
            started_at=row.updated_at,
            created_at=row.created_at,
            **done,
        )
        assert claimed.scope == Scope("default")

    def test_many_at_once_make_one_winner(self, database: Database) -> None:
        job_ids = [make_job(database) for _ in range(3)]
        barrier = threading.Barrier(12)
        wins: list[tuple[str, int]] = []

        def compete() -> None:
            barrier.wait()
            for job_id in job_ids:
                claimed = try_claim(database, job_id)
                if claimed is not None:
                    wins.append((job_id, claimed.epoch))

        threads = [threading.Thread(target=compete) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(wins) == [(job_id, 1) for job_id in job_ids]
        for job_id in job_ids:
            assert [e.seq for e in history_of(database, job_id)] == [1, 2]

    def test_a_job_of_a_newer_version_waits_for_its_own_workers(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, spec={"of": "tomorrow"}, spec_version=SPEC_VERSION + 1)
        assert try_claim(database, job_id) is None
        assert (get(database, job_id).state, get(database, job_id).epoch) == ("queued", 0)

    @pytest.mark.parametrize("state", [s for s in JobState if s is not JobState.QUEUED])
    def test_only_a_queued_job(self, database: Database, state: JobState) -> None:
        job_id = make_job(database)
        put(database, job_id, state=state)
        assert try_claim(database, job_id) is None
        assert get(database, job_id).epoch == 0

    @pytest.mark.parametrize(("attempts", "used"), [(0, 0), (1, 20), (2, 30)])
    def test_the_stages_time_is_that_of_its_attempts_since_it_was_last_started_anew(
        self, database: Database, attempts: int, used: float
    ) -> None:
        """A manual retry counts from one again; other stages and jobs have their own time."""
        job_id, other = make_job(database), make_job(database)
        spent = {1: ("prepare", 1000), 2: ("prepare", 10), 3: ("train", 300), 4: ("prepare", 20)}
        with database.write() as session:
            for epoch, (stage, seconds) in {**spent, 9: ("prepare", 50)}.items():
                session.add(
                    AttemptRow(
                        job_id=job_id if epoch in spent else other,
                        epoch=epoch,
                        stage=stage,
                        number=1,
                        worker_id="w",
                        started_at=db_now(-seconds),
                        ended_at=db_now(),
                    )
                )
        put(database, job_id, epoch=4, stage_attempt=attempts)
        claimed = try_claim(database, job_id)
        assert claimed is not None
        assert (claimed.epoch, claimed.attempt) == (5, attempts + 1)
        assert claimed.stage_used_seconds == pytest.approx(used, abs=1)

    def test_unknown_job(self, database: Database) -> None:
        assert try_claim(database, "job-unknown") is None

    def test_not_before_its_time(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, not_before=db_now(60))
        assert try_claim(database, job_id) is None
        put(database, job_id, not_before=db_now(-1))
        assert try_claim(database, job_id) is not None

    def test_only_from_a_queue_that_the_worker_serves(self, database: Database) -> None:
        job_id = make_job(database)
        assert try_claim(database, job_id, queues=("gpu",)) is None
        assert try_claim(database, job_id, queues=("gpu", "cpu")) is not None

    def test_only_with_the_gpus_that_it_needs(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, min_gpus=1)
        assert try_claim(database, job_id, gpus=()) is None
        claimed = try_claim(database, job_id, gpus=("GPU-a",))
        assert claimed is not None
        assert claimed.gpus == ("GPU-a",)
        assert history_of(database, job_id)[-1].data["gpus"] == ["GPU-a"]

    def test_the_first_that_waits_in_each_queue(self, database: Database) -> None:
        waiting = {queue: [make_job(database) for _ in range(2)] for queue in ("gpu", "gpu.2")}
        late, hidden = make_job(database, priority=0), make_job(database, priority=0)
        for queue, job_ids in (*waiting.items(), ("gpu.2", [late]), ("gpu.4", [hidden])):
            for job_id in job_ids:
                put(database, job_id, queue=queue)
        put(database, waiting["gpu"][0], not_before=db_now(60))
        put(database, hidden, spec_version=SPEC_VERSION + 1)
        with database.read() as session:
            found = claims.first_waiting(session, ["gpu", "gpu.2", "gpu.4"])
        assert [(job.job_id, job.queue, job.gpus) for job in found] == [
            (late, "gpu.2", 2),
            (waiting["gpu"][1], "gpu", 1),
        ]
        assert all(0 <= job.waited_seconds < 60 for job in found)

    def test_those_queued_at_the_same_time_are_ordered_by_id(self, database: Database) -> None:
        with database.read() as session:
            same = clock(session)
        job_ids = [make_job_of(database, "default", gpus=1) for _ in range(9)]
        for job_id in job_ids:
            put(database, job_id, queued_at=same)
        limit(database, max_gpus=1)
        with database.read() as session:
            assert claims.first_of_projects(session, "gpu", 1) == [min(job_ids)]
            assert claims.first_of_project(session, "default") == min(job_ids)
        put(database, max(job_ids), queued_at=db_now(-90))
        with database.read() as session:
            assert claims.first_of_projects(session, "gpu", 1) == [max(job_ids)]
            assert claims.first_of_project(session, "default") == max(job_ids)

    def test_a_claim_that_was_rolled_back_is_not_committed(self, database: Database) -> None:
        """Another process of the worker claims with the same epoch: that is another claim."""
        job_id = make_job(database)
        lost: list[Claim] = []

        def lose_the_commit() -> None:
            with database.write() as session:
                claimed = claims.claim(
                    session, job_id, "w", queues=["cpu"], gpus=(), lease_seconds=60
                )
                assert claimed is not None
                lost.append(claimed)
                raise ConnectionError

        with pytest.raises(ConnectionError):
            lose_the_commit()
        with database.read() as session:
            assert not claims.is_committed(session, lost[0])
        other = try_claim(database, job_id)
        assert other is not None
        assert other.epoch == lost[0].epoch
        with database.read() as session:
            assert claims.is_committed(session, other)
            assert not claims.is_committed(session, lost[0])

    @on_postgres
    def test_a_commit_that_is_on_its_way_is_waited_for(self, database: Database) -> None:
        job_id = make_job(database)
        answers: list[bool] = []

        def ask(claimed: Claim) -> None:
            with database.read() as session:
                answers.append(claims.is_committed(session, claimed))

        with database.write() as session:
            claimed = claims.claim(session, job_id, "w", queues=["cpu"], gpus=(), lease_seconds=60)
            assert claimed is not None
            asking = threading.Thread(target=ask, args=(claimed,))
            asking.start()
            wait_until(lambda: waits_for_a_lock(database) or answers, 10, "the question")
            assert answers == []
        asking.join(10)
        assert answers == [True]


class TestBeat:
    @pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING])
    def test_renews_the_lease_and_returns_the_requested_action(
        self, database: Database, state: JobState
    ) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id, lease_seconds=1)
        put(database, job_id, state=state)
        before = get(database, job_id).lease_until
        with database.write() as session:
            assert claims.renew(session, job_id, claimed.epoch, 100) is state
        after = get(database, job_id).lease_until
        assert before is not None
        assert after is not None
        assert (after - before).total_seconds() == pytest.approx(99, abs=2)
        with database.read() as session:
            assert claims.requested_state(session, job_id, claimed.epoch) is state

    def test_a_stale_epoch_changes_nothing(self, database: Database) -> None:
        job_id = make_job(database)
        claim_job(database, job_id)
        before = get(database, job_id).lease_until
        with database.write() as session:
            assert claims.renew(session, job_id, 0, 1000) is None
            assert claims.requested_state(session, job_id, 0) is None
            assert claims.held(session, job_id, 0) is None
        assert get(database, job_id).lease_until == before

    def test_a_job_without_a_holder_has_no_beat(self, database: Database) -> None:
        job_id = make_job(database)
        with database.write() as session:
            assert claims.renew(session, job_id, 0, 60) is None
        assert get(database, job_id).lease_until is None


class TestStoredByAnEarlierRelease:
    def test_a_spec_out_of_todays_bounds_is_claimed(self, database: Database) -> None:
        job_id = make_job(database)
        with database.write() as session:
            row = session.get_one(JobRow, job_id)
            row.spec = {**row.spec, "training": {**row.spec["training"], "max_steps": 10**15}}
        claimed = try_claim(database, job_id)
        assert claimed is not None
        assert claimed.spec.training.max_steps == 10**15
