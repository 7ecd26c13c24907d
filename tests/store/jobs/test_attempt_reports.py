from typing import Any

import pytest
from sqlalchemy import select

from service.contract.stage.events import (
    ArtifactWritten,
    Finished,
    Metric,
    Notice,
    PhaseChanged,
    Progress,
    ReferenceSaved,
    StageEvent,
)
from service.contract.states import Phase
from service.store.database import Database, db_now
from service.store.jobs import attempt_reports, endings
from service.store.jobs.attempt_reports import Recorded
from service.store.jobs.claims import Claim
from service.store.tables.jobs import ArtifactRow, AttemptRow, CheckpointRow, MetricRow
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.store.job_rows import checkpoint_saved, get, history_of, put, snapshot
from tests.support.store.statements import sent


def record(database: Database, claimed: Claim, *events: StageEvent) -> Recorded | None:
    with database.write() as session:
        return attempt_reports.record(session, claimed.job_id, claimed.epoch, events)


def loss(step: int, value: float, **more: Any) -> Metric:
    return Metric(kind="train", step=step, values={"loss": value}, **more)


def f1(step: int, value: float) -> Metric:
    return Metric(kind="eval", step=step, values={"f1": value})


def rows(database: Database, table: Any, order: Any) -> list[Any]:
    with database.read() as session:
        return list(session.scalars(select(table).order_by(order)))


def artifact(name: str, path: str = "attempts/1/p.json", size: int = 2) -> ArtifactWritten:
    return ArtifactWritten(name=name, path=path, bytes=size, sha256="b" * 64)


@pytest.fixture
def claimed(database: Database) -> Claim:
    return claim_job(database, make_job(database))


class TestRecord:
    def test_phase_and_notice_go_into_the_history_without_gaps(
        self, database: Database, claimed: Claim
    ) -> None:
        record(database, claimed, PhaseChanged(phase=Phase.LOADING), Notice(message="hello"))
        record(database, claimed, PhaseChanged(phase=Phase.TRAINING))
        assert get(database, claimed.job_id).phase == "training"
        recorded = [(e.seq, e.type, e.data) for e in history_of(database, claimed.job_id)[2:]]
        assert recorded == [
            (3, "phase", {"phase": "loading"}),
            (4, "notice", {"message": "hello", "data": {}}),
            (5, "phase", {"phase": "training"}),
        ]

    def test_progress_is_overwritten_and_leaves_no_history(
        self, database: Database, claimed: Claim
    ) -> None:
        record(database, claimed, Progress(step=1, of=9), Progress(step=2, of=9, loss=0.5))
        assert get(database, claimed.job_id).progress == {
            "step": 2,
            "of": 9,
            "epoch": None,
            "loss": 0.5,
            "examples_per_second": None,
            "eta_seconds": None,
        }
        assert len(history_of(database, claimed.job_id)) == 2

    def test_numbers_are_kept_once_and_numbered_without_gaps(
        self, database: Database, claimed: Claim
    ) -> None:
        record(database, claimed, loss(1, 2.0, epoch=0.5), f1(1, 10.0))
        record(database, claimed, loss(1, 99.0), loss(2, 1.0))
        kept = rows(database, MetricRow, MetricRow.seq)
        assert [(m.seq, m.kind, m.step, m.values) for m in kept] == [
            (1, "train", 1, {"loss": 2.0}),
            (2, "eval", 1, {"f1": 10.0}),
            (3, "train", 2, {"loss": 1.0}),
        ]
        assert kept[0].progress_epoch == 0.5
        assert get(database, claimed.job_id).metric_seq == 3

    def test_the_job_is_written_once_for_all_numbers(
        self, database: Database, claimed: Claim
    ) -> None:
        numbers = [loss(step, 0.5) for step in range(1, 6)]
        with sent(database) as statements:
            record(database, claimed, *numbers)
        assert sum(each.startswith("UPDATE jobs") for each in statements) == 1

    def test_numbers_of_steps_that_were_made_anew_replace_the_others(
        self, database: Database, claimed: Claim
    ) -> None:
        record(database, claimed, loss(1, 2.0), loss(2, 1e30), f1(2, 10.0))
        remade = loss(2, 1.0, is_remade=True)
        record(database, claimed, remade)
        kept = rows(database, MetricRow, MetricRow.seq)
        assert [(m.seq, m.kind, m.step, m.values) for m in kept] == [
            (1, "train", 1, {"loss": 2.0}),
            (3, "eval", 2, {"f1": 10.0}),
            (4, "train", 2, {"loss": 1.0}),
        ]
        assert get(database, claimed.job_id).metric_seq == 4

    def test_last_metrics_are_merged(self, database: Database, claimed: Claim) -> None:
        record(
            database,
            claimed,
            Metric(kind="train", step=1, values={"loss": 2.0, "learning_rate": 0.1}),
            Metric(kind="eval", step=1, values={"loss": 3.0, "f1": 10.0}),
            Metric(kind="system", step=5, values={"cpu_percent": 50.0}),
            loss(2, 1.0),
        )
        assert get(database, claimed.job_id).last_metrics == {
            "loss": 1.0,
            "learning_rate": 0.1,
            "eval_loss": 3.0,
            "eval_f1": 10.0,
        }

    def test_a_diverged_loss_is_kept(self, database: Database, claimed: Claim) -> None:
        values = {"loss": float("nan"), "grad_norm": float("inf")}
        record(database, claimed, Metric(kind="train", step=1, values=values))
        [metric] = rows(database, MetricRow, MetricRow.seq)
        assert metric.values == {"loss": "nan", "grad_norm": "inf"}

    def test_an_artifact_written_again_is_one_row(self, database: Database, claimed: Claim) -> None:
        record(database, claimed, artifact("p.json"), artifact("n.json"))
        record(database, claimed, artifact("p.json", "attempts/2/p.json", 7))
        kept = rows(database, ArtifactRow, ArtifactRow.name)
        assert [(a.name, a.path, a.bytes) for a in kept] == [
            ("n.json", "attempts/1/p.json", 2),
            ("p.json", "attempts/2/p.json", 7),
        ]

    def test_ends_are_not_for_here(self, database: Database, claimed: Claim) -> None:
        with pytest.raises(TypeError):
            record(database, claimed, Finished(result={}))

    def test_a_stale_epoch_changes_nothing(self, database: Database, claimed: Claim) -> None:
        put(database, claimed.job_id, lease_until=db_now(-1))
        with database.write() as session:
            endings.expire(session, claimed.job_id, POLICY)
        claim_job(database, claimed.job_id, "worker-2")
        before = snapshot(database, claimed.job_id)
        events: list[StageEvent] = [
            PhaseChanged(phase=Phase.TRAINING),
            Progress(step=5, of=9),
            loss(1, 1.0),
            checkpoint_saved(1),
            artifact("p.json"),
            Notice(message="late"),
        ]
        for event in events:
            assert record(database, claimed, event) is None
        with database.write() as session:
            assert attempt_reports.resumed(session, claimed.job_id, claimed.epoch, 1) is False
        assert snapshot(database, claimed.job_id) == before
        for table in (MetricRow, CheckpointRow, ArtifactRow):
            assert rows(database, table, table.job_id) == []

    def test_a_batch_without_answer_is_found_again(
        self, database: Database, claimed: Claim
    ) -> None:
        committed = record(database, claimed, Notice(message="a"))
        assert committed is not None
        with database.read() as session:
            assert attempt_reports.is_committed(session, claimed.job_id, committed)
        lost: list[Recorded] = []

        def lose() -> None:
            with database.write() as session:
                batch = [Notice(message="b")]
                written = attempt_reports.record(session, claimed.job_id, claimed.epoch, batch)
                assert written is not None
                lost.append(written)
                raise ConnectionError

        with pytest.raises(ConnectionError):
            lose()
        with database.read() as session:
            assert not attempt_reports.is_committed(session, claimed.job_id, lost[0])


class TestCrashCount:
    def test_only_going_further_is_progress(self, database: Database, claimed: Claim) -> None:
        put(database, claimed.job_id, crash_count=2, furthest_step=5)
        record(database, claimed, Progress(step=5, of=9))
        assert get(database, claimed.job_id).crash_count == 2
        record(database, claimed, Progress(step=6, of=9))
        row = get(database, claimed.job_id)
        assert (row.crash_count, row.furthest_step) == (0, 6)

    @pytest.mark.parametrize("phase", [Phase.BASELINE, Phase.EVALUATING, Phase.PREDICTING])
    def test_an_evaluation_is_not_progress(
        self, database: Database, claimed: Claim, phase: Phase
    ) -> None:
        """It counts examples, and would hide a training that always fails at its first step."""
        put(database, claimed.job_id, crash_count=2)
        record(database, claimed, PhaseChanged(phase=phase), Progress(step=500, of=900))
        row = get(database, claimed.job_id)
        assert (row.crash_count, row.furthest_step) == (2, 0)

    def test_a_checkpoint_further_on_is_progress(self, database: Database, claimed: Claim) -> None:
        put(database, claimed.job_id, crash_count=2, furthest_step=5)
        record(database, claimed, checkpoint_saved(6))
        assert get(database, claimed.job_id).crash_count == 0

    def test_more_of_the_reference_is_progress(self, database: Database, claimed: Claim) -> None:
        """Each amount once, so that a stage that computes it again and again ends; and it hides no
        training that fails at its first step."""
        counts = []
        for features in (40, 40, 30, 50, 50):
            put(database, claimed.job_id, crash_count=2)
            record(database, claimed, ReferenceSaved(features=features))
            counts.append(get(database, claimed.job_id).crash_count)
        assert counts == [0, 2, 2, 0, 2]
        row = get(database, claimed.job_id)
        assert (row.furthest_step, row.furthest_reference) == (0, 50)
        assert history_of(database, claimed.job_id)[-1].type == "stage_started"


class TestCheckpoints:
    def live(self, database: Database) -> list[int]:
        found = rows(database, CheckpointRow, CheckpointRow.step)
        return [row.step for row in found if row.pruned_at is None]

    def test_the_oldest_is_removed_but_the_best_and_the_newest_are_kept(
        self, database: Database
    ) -> None:
        claimed = claim_job(database, make_job(database, training={"save_total_limit": 2}))
        pruned = []
        for step, best in [(1, False), (2, True), (3, False), (4, False)]:
            recorded = record(database, claimed, checkpoint_saved(step, best=best))
            assert recorded is not None
            pruned += recorded.pruned
        assert self.live(database) == [2, 4]
        assert pruned == ["attempts/1/checkpoints/1", "attempts/1/checkpoints/3"]
        events = [(e.type, e.data["step"]) for e in history_of(database, claimed.job_id)[2:]]
        assert events == [
            ("checkpoint", 1),
            ("checkpoint", 2),
            ("checkpoint", 3),
            ("checkpoint_pruned", 1),
            ("checkpoint", 4),
            ("checkpoint_pruned", 3),
        ]

    def test_a_limit_of_one_keeps_best_and_newest(self, database: Database) -> None:
        claimed = claim_job(database, make_job(database, training={"save_total_limit": 1}))
        saved = (checkpoint_saved(step, best=step == 1) for step in (1, 2, 3))
        record(database, claimed, *saved)
        assert self.live(database) == [1, 3]

    def test_another_best_frees_the_last(self, database: Database) -> None:
        claimed = claim_job(database, make_job(database, training={"save_total_limit": 1}))
        record(database, claimed, checkpoint_saved(1, best=True), checkpoint_saved(2, best=True))
        assert self.live(database) == [2]

    def test_without_a_limit_all_stay(self, database: Database, claimed: Claim) -> None:
        record(database, claimed, *(checkpoint_saved(step) for step in range(1, 6)))
        assert self.live(database) == [1, 2, 3, 4, 5]

    def test_written_again_by_a_later_attempt(self, database: Database, claimed: Claim) -> None:
        record(database, claimed, checkpoint_saved(1))
        recorded = record(database, claimed, checkpoint_saved(1, attempt=2))
        assert recorded is not None
        assert recorded.pruned == ["attempts/1/checkpoints/1"]
        with database.read() as session:
            [row] = attempt_reports.registered_checkpoints(session, claimed.job_id)
        assert row.path == "attempts/2/checkpoints/1"

    def test_resumed_is_noted(self, database: Database, claimed: Claim) -> None:
        with database.write() as session:
            assert attempt_reports.resumed(session, claimed.job_id, claimed.epoch, 4)
        with database.read() as session:
            attempt = session.get_one(AttemptRow, (claimed.job_id, claimed.epoch))
        assert attempt.resumed_from_step == 4
        last = history_of(database, claimed.job_id)[-1]
        assert (last.type, last.data) == ("resumed", {"step": 4})
