from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import RULES, Failure, FailureCode
from service.contract.states import JobState
from service.store.database import Database, db_now
from service.store.jobs import endings, user_actions
from service.store.jobs import state as jobs
from service.store.jobs.claims import Claim
from service.store.jobs.endings import Ending
from service.store.tables.jobs import AttemptRow, JobRow
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.store.job_rows import TRAINED, get, history_of, put, snapshot
from tests.support.store.statements import sent

NETWORK = Failure.from_code(FailureCode.NETWORK, "The network is down.")
MISSING = Failure.from_code(FailureCode.FILES_MISSING, "The prepared data are not there.")
BAD_ROW = Failure.from_code(
    FailureCode.UNREADABLE_ROW, "Row 7 has no answer.", row=7, file=Path("a.csv")
)


def end(database: Database, claimed: Claim, ending: Ending) -> JobState | None:
    with database.write() as session:
        return endings.end(session, claimed.job_id, claimed.epoch, ending, POLICY)


def attempt(database: Database, claimed: Claim) -> AttemptRow:
    with database.read() as session:
        return session.get_one(AttemptRow, (claimed.job_id, claimed.epoch))


def expire(database: Database, job_id: str) -> JobState | None:
    put(database, job_id, lease_until=db_now(-1))
    with database.write() as session:
        return endings.expire(session, job_id, POLICY)


def grace_of(row: JobRow) -> float:
    """Seconds between the end of the job and the first message to complete its run."""
    assert row.ended_at is not None
    assert row.tracking_retry_at is not None
    return (row.tracking_retry_at - row.ended_at).total_seconds()


class TestFinished:
    @pytest.mark.parametrize(
        ("gpus", "queue", "min_gpus"),
        [(None, "gpu", 0), (1, "gpu", 1), (4, "gpu.4", 4), (0, "cpu", 0)],
    )
    def test_the_next_stage_waits_in_its_queue(
        self, database: Database, gpus: int | None, queue: str, min_gpus: int
    ) -> None:
        job_id = make_job(database, resources={"gpus": gpus})
        put(database, job_id, crash_count=2, furthest_step=9, furthest_reference=8, stage_attempt=4)
        claimed = claim_job(database, job_id)
        assert end(database, claimed, Ending.finished({"rows": 3})) is JobState.QUEUED
        row = get(database, job_id)
        assert (row.state, row.stage, row.queue, row.min_gpus) == (
            "queued",
            "train",
            queue,
            min_gpus,
        )
        assert (row.stage_attempt, row.crash_count) == (0, 0)
        assert (row.furthest_step, row.furthest_reference) == (0, 0)
        assert (row.phase, row.progress, row.worker_id, row.lease_until) == (None,) * 4
        assert row.results == {"prepare": {"rows": 3}}
        assert row.ended_at is None
        ended = attempt(database, claimed)
        assert (ended.outcome, ended.number) == ("finished", 5)
        assert ended.ended_at is not None
        last = history_of(database, job_id)[-1]
        assert (last.type, last.epoch) == ("stage_finished", 1)
        assert (last.data["stage"], last.data["next_stage"]) == ("prepare", "train")

    def test_all_stages_to_success(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, follow_up={"action": "evaluate"})
        for number, stage in enumerate(["prepare", "train", "publish"], start=1):
            claimed = claim_job(database, job_id)
            assert (claimed.stage, claimed.epoch, claimed.attempt) == (stage, number, 1)
            if stage != "publish":
                put(database, job_id, progress={"step": number, "of": 9})
            end(database, claimed, Ending.finished({"of": stage}))
        row = get(database, job_id)
        assert (row.state, row.stage) == ("succeeded", "publish")
        assert row.progress == {"step": 2, "of": 9}, "how far the training came stays"
        assert row.results == {s: {"of": s} for s in ("prepare", "train", "publish")}
        assert row.follow_up is None
        assert grace_of(row) == pytest.approx(jobs.TRACKING_GRACE_SECONDS, abs=1)
        history = history_of(database, job_id)
        assert [e.seq for e in history] == list(range(1, 8))
        assert [e.type for e in history[2::2]] == ["stage_finished"] * 3

    def test_a_result_may_hold_nan(self, database: Database) -> None:
        job_id = make_job(database)
        end(database, claim_job(database, job_id), Ending.finished({"loss": float("nan")}))
        assert get(database, job_id).results == {"prepare": {"loss": "nan"}}

    def test_running_time_adds_up(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, used_seconds=100.0)
        claimed = claim_job(database, job_id)
        with database.write() as session:
            session.get_one(AttemptRow, (job_id, 1)).started_at = db_now(-50)
        end(database, claimed, Ending.finished({}))
        used = get(database, job_id).used_seconds
        assert used == pytest.approx(150, abs=1)
        assert history_of(database, job_id)[-1].data["seconds"] == round(used - 100, 3)

    def test_usage_is_written_before_shares_whether_the_job_ends_or_not(
        self, database: Database
    ) -> None:
        """In different orders two endings of one project would wait for each other."""
        job_id = make_job(database)
        for stage, state in (("train", JobState.QUEUED), ("publish", JobState.SUCCEEDED)):
            put(database, job_id, stage=stage)
            claimed = claim_job(database, job_id)
            with sent(database) as statements:
                assert end(database, claimed, Ending.finished(TRAINED)) is state
            tables = [
                table
                for statement in statements
                for table in ("usage_days", "fair_shares")
                if f"INTO {table}" in statement or f"UPDATE {table}" in statement
            ]
            assert tables == sorted(tables, reverse=True)
            assert {"usage_days", "fair_shares"} == set(tables)


class TestFailed:
    def test_a_transient_failure_waits_and_tries_again(self, database: Database) -> None:
        job_id = make_job(database, max_retries=3)
        waits = []
        for _ in range(3):
            claimed = claim_job(database, job_id)
            assert end(database, claimed, Ending.failed(NETWORK)) is JobState.QUEUED
            row = get(database, job_id)
            waits.append(round((row.not_before - row.updated_at).total_seconds()))
            # Postgres reads its clock once for each of them.
            assert abs(row.next_publish_at - row.not_before) < timedelta(seconds=1)
            assert row.failure is None
            put(database, job_id, not_before=db_now())
        assert waits == [10, 20, 40]
        last = history_of(database, job_id)[-1]
        assert last.type == "attempt_failed"
        assert (last.data["retry"], last.data["wait_seconds"]) == (True, 40)
        assert last.data["failure"]["code"] == "network"
        assert last.data["failure"]["action"] == (
            "Retrying in 40 s. If it persists, check that the worker reaches the Hub."
        )
        assert attempt(database, claimed).failure == last.data["failure"]
        assert end(database, claim_job(database, job_id), Ending.failed(NETWORK)) is JobState.FAILED
        row = get(database, job_id)
        assert row.failure == NETWORK.model_dump(mode="json") | {
            "action": f"Gave up after 4 attempts. Fix the network, then `finetune retry {job_id}`."
        }
        assert history_of(database, job_id)[-1].data["failure"] == row.failure
        assert (row.retry_count, row.stage_attempt) == (3, 4)

    def test_the_wait_has_a_limit(self, database: Database) -> None:
        job_id = make_job(database, max_retries=100)
        put(database, job_id, retry_count=50)
        end(database, claim_job(database, job_id), Ending.failed(NETWORK))
        row = get(database, job_id)
        assert round((row.not_before - row.updated_at).total_seconds()) == 600
        action = history_of(database, job_id)[-1].data["failure"]["action"]
        assert action.startswith("Retrying in 10 min.")

    @pytest.mark.parametrize(
        ("stage", "results", "kept"),
        [
            ("publish", {"train": TRAINED}, " The model is kept."),
            ("publish", {"train": {"output_dir": None}}, ""),
            ("publish", {}, ""),
            ("train", {"train": TRAINED}, ""),
        ],
    )
    def test_a_push_that_fails_keeps_the_model(
        self, database: Database, stage: str, results: dict[str, Any], kept: str
    ) -> None:
        job_id = make_job(database, max_retries=0)
        put(database, job_id, stage=stage, results=results)
        assert end(database, claim_job(database, job_id), Ending.failed(NETWORK)) is JobState.FAILED
        assert (get(database, job_id).failure or {})["action"] == (
            f"Fix the network, then `finetune retry {job_id}`.{kept}"
        )

    def test_the_users_fault_is_final(self, database: Database) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        assert end(database, claimed, Ending.failed(BAD_ROW)) is JobState.FAILED
        row = get(database, job_id)
        assert row.failure == {
            "code": "unreadable_row",
            "message": "Row 7 has no answer.",
            "action": BAD_ROW.action,
            "details": {"row": 7, "file": "a.csv"},
        }
        assert row.ended_at is not None
        assert attempt(database, claimed).failure == row.failure
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data["retry"]) == ("attempt_failed", False)


class TestPreparedAgain:
    def missing(self, database: Database, job_id: str, stage: str) -> JobState | None:
        put(database, job_id, stage=stage, progress={"step": 2, "of": 9})
        return end(database, claim_job(database, job_id), Ending.failed(MISSING))

    def test_unless_the_attempts_at_the_stage_end_so_again_and_again(
        self, database: Database
    ) -> None:
        """Three in a row; those of other jobs and stages do not count."""
        other, job_id = make_job(database), make_job(database)
        for job, stage in ((job_id, "prepare"), (other, "train")) * 2:
            assert self.missing(database, job, stage) is JobState.QUEUED
        states = [self.missing(database, job_id, "train") for _ in range(2)]
        put(database, job_id, stage="train")
        end(database, claim_job(database, job_id), Ending.released())
        states += [self.missing(database, job_id, "train") for _ in range(3)]
        assert states == ["queued"] * 4 + ["failed"]
        assert (get(database, job_id).failure or {})["action"] == (
            "Make sure that all workers use the same FINETUNE_HOME and that nothing else removes "
            f"files below it, then `finetune retry {job_id}`."
        )

    def test_it_waits_for_prepare(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, queue="gpu", results={"prepare": {"rows": 3}}, stage_attempt=4)
        self.missing(database, job_id, "train")
        row = get(database, job_id)
        assert (row.stage, row.queue, row.stage_attempt) == ("prepare", "cpu", 0)
        assert (row.progress, row.results) == (None, {"prepare": {"rows": 3}})
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data["retry"], last.data["next_stage"]) == (
            "attempt_failed",
            True,
            "prepare",
        )
        assert last.data["failure"]["code"] == "files_missing"
        assert last.data["failure"]["action"] == "No action needed: `prepare` makes them again."

    def test_what_follows_a_training_keeps_how_far_that_came(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, follow_up={"action": "evaluate"})
        self.missing(database, job_id, "train")
        assert get(database, job_id).progress == {"step": 2, "of": 9}


class TestLack:
    @pytest.mark.parametrize(("details", "longest"), [({"bytes_needed": 9}, 60), ({}, 600)])
    def test_waits_longer_each_time_and_counts_nothing(
        self, database: Database, details: dict[str, Any], longest: int
    ) -> None:
        job_id = make_job(database, max_retries=0)
        full = Failure.from_code(FailureCode.DISK_FULL, "The disk is full.", **details)
        waits = []
        for earlier_attempts in (0, 1, 2, 5000):
            put(database, job_id, stage_attempt=earlier_attempts, not_before=db_now())
            claimed = claim_job(database, job_id)
            assert end(database, claimed, Ending.failed(full)) is JobState.QUEUED
            row = get(database, job_id)
            waits.append(round((row.not_before - row.updated_at).total_seconds()))
        assert waits == [5, 10, 20, longest]
        assert (row.retry_count, row.crash_count, row.failure) == (0, 0, None)
        ended = attempt(database, claimed)
        last = history_of(database, job_id)[-1]
        assert (ended.outcome, last.type, last.data["wait_seconds"]) == (
            "released",
            "released",
            longest,
        )
        assert ended.failure == last.data["failure"]
        assert last.data["failure"]["code"] == "disk_full"
        assert last.data["failure"]["action"] == RULES[FailureCode.DISK_FULL].while_retrying

    def test_of_a_pausing_job(self, database: Database) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        put(database, job_id, state=JobState.PAUSING)
        full = Failure.from_code(FailureCode.DISK_FULL, "The disk is full.")
        assert end(database, claimed, Ending.failed(full)) is JobState.PAUSED
        assert (attempt(database, claimed).failure or {})["action"].startswith("Paused on request")


class TestReleased:
    def test_returns_to_the_queue_without_a_fault(self, database: Database) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        assert end(database, claimed, Ending.released()) is JobState.QUEUED
        row = get(database, job_id)
        assert (row.stage, row.crash_count, row.retry_count) == ("prepare", 0, 0)
        assert attempt(database, claimed).outcome == "released"
        assert history_of(database, job_id)[-1].type == "released"
        assert claim_job(database, job_id).epoch == 2


class TestWishes:
    @pytest.mark.parametrize(
        "ending",
        [Ending.finished({}), Ending.failed(BAD_ROW), Ending.cancelled(), Ending.released()],
    )
    def test_a_cancelling_job_is_cancelled_however_it_ends(
        self, database: Database, ending: Ending
    ) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        with database.write() as session:
            user_actions.cancel(session, session.get_one(JobRow, job_id))
        assert end(database, claimed, ending) is JobState.CANCELLED
        row = get(database, job_id)
        assert row.failure is not None
        assert row.failure["code"] == "cancelled"
        assert row.failure["message"] == "Cancelled on request."
        assert row.failure["action"] == f"Continue it with `finetune retry {job_id}`."
        assert row.lease_until is None

    def test_the_attempt_says_that_it_was_cancelled(self, database: Database) -> None:
        claimed = claim_job(database, make_job(database))
        put(database, claimed.job_id, state=JobState.CANCELLING)
        end(database, claimed, Ending.cancelled())
        assert history_of(database, claimed.job_id)[-1].type == "cancelled"
        assert (attempt(database, claimed).failure or {})["code"] == "cancelled"

    @pytest.mark.parametrize("ending", [Ending.finished({}), Ending.failed(NETWORK)])
    def test_a_pausing_job_that_would_wait_is_paused(
        self, database: Database, ending: Ending
    ) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        put(database, job_id, state=JobState.PAUSING)
        assert end(database, claimed, ending) is JobState.PAUSED
        failure = attempt(database, claimed).failure
        assert failure is None or failure["action"].startswith(
            f"Paused on request: `finetune resume {job_id}` tries again."
        )


class TestStale:
    @pytest.mark.parametrize(
        "ending",
        [Ending.finished({}), Ending.failed(BAD_ROW), Ending.cancelled(), Ending.released()],
    )
    def test_changes_nothing(self, database: Database, ending: Ending) -> None:
        job_id = make_job(database)
        old = claim_job(database, job_id)
        expire(database, job_id)
        claim_job(database, job_id, "worker-2")
        before = snapshot(database, job_id)
        assert end(database, old, ending) is None
        assert snapshot(database, job_id) == before

    def test_a_second_end_changes_nothing(self, database: Database) -> None:
        claimed = claim_job(database, make_job(database))
        end(database, claimed, Ending.finished({}))
        before = snapshot(database, claimed.job_id)
        assert end(database, claimed, Ending.failed(BAD_ROW)) is None
        assert snapshot(database, claimed.job_id) == before


class TestSettled:
    def test_distinguishes_a_written_end_from_a_lost_one(self, database: Database) -> None:
        job_id = make_job(database)
        first = claim_job(database, job_id)
        with database.read() as session:
            assert endings.settled(session, job_id, first.epoch) is None
        expire(database, job_id)
        with database.read() as session:
            assert endings.settled(session, job_id, first.epoch) is None
        second = claim_job(database, job_id)
        end(database, second, Ending.finished({}))
        with database.read() as session:
            assert endings.settled(session, job_id, second.epoch) is JobState.QUEUED


class TestExpire:
    def test_the_job_waits_again_under_another_epoch(self, database: Database) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        assert expire(database, job_id) is JobState.QUEUED
        row = get(database, job_id)
        assert (row.epoch, row.crash_count, row.worker_id, row.lease_until) == (2, 1, None, None)
        lost = attempt(database, claimed)
        assert lost.outcome == "lost"
        assert lost.failure is not None
        assert lost.failure["code"] == "worker_lost"
        assert lost.failure["action"].startswith("No action needed: the job continues")
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data["retry"]) == ("lease_expired", True)
        assert claim_job(database, job_id).epoch == 3

    def test_the_third_loss_without_progress_is_the_last(self, database: Database) -> None:
        job_id = make_job(database)
        states = []
        for _ in range(3):
            last = claim_job(database, job_id)
            states.append(expire(database, job_id))
        assert states == ["queued", "queued", "failed"]
        row = get(database, job_id)
        assert row.failure is not None
        assert row.failure["code"] == "crash_limit"
        assert row.failure["message"] == (
            "3 attempts in a row at prepare ended without any progress. "
            "The last: Worker worker-1 has not renewed its lease during prepare."
        )
        assert row.failure["action"] == (
            "Gave up after 3 attempts. Find out why the worker ended (its log, `finetune logs "
            f"{job_id} --raw`, the host's memory), then `finetune retry {job_id}`."
        )
        lost = attempt(database, last).failure or {}
        assert (lost["code"], lost["action"]) == ("worker_lost", row.failure["action"])
        assert row.crash_count == 3
        assert grace_of(row) == pytest.approx(0, abs=1)

    def test_the_last_loss_of_a_push_keeps_the_model(self, database: Database) -> None:
        job_id = make_job(database)
        put(database, job_id, stage="publish", results={"train": TRAINED}, crash_count=2)
        last = claim_job(database, job_id)
        assert expire(database, job_id) is JobState.FAILED
        action: str = (attempt(database, last).failure or {})["action"]
        assert action.endswith(" The model is kept.")

    def test_crashes_of_the_stage_count_with_lost_workers_and_not_as_retries(
        self, database: Database
    ) -> None:
        job_id = make_job(database, max_retries=0)
        killed = Failure.from_code(FailureCode.WORKER_LOST, "The stage was killed.")
        hung = Failure.from_code(FailureCode.HUNG, "No step.")
        assert end(database, claim_job(database, job_id), Ending.failed(killed)) == "queued"
        claim_job(database, job_id)
        assert expire(database, job_id) == "queued"
        assert end(database, claim_job(database, job_id), Ending.failed(hung)) == "failed"
        row = get(database, job_id)
        assert row.failure is not None
        assert row.failure["code"] == "crash_limit"
        assert row.failure["details"] == {"last": "hung"}
        assert row.retry_count == 0
        crashes = [event.data for event in history_of(database, job_id) if "retry" in event.data]
        assert [crash["retry"] for crash in crashes] == [True, True, False]
        types = [event.type for event in history_of(database, job_id) if "retry" in event.data]
        assert types == ["attempt_failed", "lease_expired", "attempt_failed"]
        codes = [crash["failure"]["code"] for crash in crashes]
        assert codes == ["worker_lost", "worker_lost", "crash_limit"]
        assert crashes[-1]["failure"] == row.failure

    @pytest.mark.parametrize(
        ("state", "after"), [("cancelling", "cancelled"), ("pausing", "paused")]
    )
    def test_the_users_action_is_kept(self, database: Database, state: str, after: str) -> None:
        job_id = make_job(database)
        claim_job(database, job_id)
        put(database, job_id, state=state)
        assert expire(database, job_id) == after

    def test_a_living_lease_stays(self, database: Database) -> None:
        job_id = make_job(database)
        claim_job(database, job_id)
        with database.write() as session:
            assert endings.expired(session, 10) == []
            assert endings.expire(session, job_id, POLICY) is None
        assert get(database, job_id).state == "running"

    def test_only_expired_ones_are_listed(self, database: Database) -> None:
        expired, living, waiting = (make_job(database) for _ in range(3))
        claim_job(database, living)
        claim_job(database, expired, lease_seconds=-1)
        with database.read() as session:
            assert endings.expired(session, 10) == [expired]
        assert get(database, waiting).lease_until is None

    def test_running_time_ends_with_the_lease(self, database: Database) -> None:
        job_id = make_job(database)
        claim_job(database, job_id)
        with database.write() as session:
            session.get_one(AttemptRow, (job_id, 1)).started_at = db_now(-90)
        put(database, job_id, lease_until=db_now(-30))
        with database.write() as session:
            endings.expire(session, job_id, POLICY)
        assert get(database, job_id).used_seconds == pytest.approx(60, abs=1)

    def test_a_lease_that_ended_before_the_start_took_no_time(self, database: Database) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id, lease_seconds=-30)
        with database.write() as session:
            endings.expire(session, job_id, POLICY)
        assert get(database, job_id).used_seconds == 0
        ended = attempt(database, claimed).ended_at
        assert ended is not None
        assert ended < claimed.started_at
