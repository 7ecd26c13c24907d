import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from service.contract.stages import StageRequest
from service.contract.states import JobState
from service.settings import Settings
from service.store import endings, jobs, user_actions
from service.store.database import Database, db_now
from service.store.models import AttemptRow, CheckpointRow, FileRow, MetricRow
from tests.stubs import stage
from tests.support import services
from tests.support.databases import on_sqlite
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.flaky import Flaky
from tests.support.job_rows import get, history_of, put
from worker.lifecycle.shutdown import Shutdown
from worker.processes import child
from worker.supervision.supervisor import Supervisor
from worker.supervision.system_metrics import SystemSampler
from worker.tracking.trackers import NullTracker

pytestmark = pytest.mark.long


def supervisor(
    database: Database, settings: Settings, shutdown: Shutdown | None = None
) -> Supervisor:
    return Supervisor(database, settings, NullTracker(), command=stage.command, shutdown=shutdown)


def run(database: Database, settings: Settings, job_id: str) -> JobState | None:
    return supervisor(database, settings).supervise(claim_job(database, job_id))


def meanwhile(action: Callable[[], object], *, when: Callable[[], object]) -> threading.Thread:
    """Do it on another thread as soon as the condition holds: stages run on the main thread."""

    def wait_and_act() -> None:
        services.wait_until(when, 20, "the stage")
        action()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def started(settings: Settings, job_id: str, epoch: int = 1) -> Callable[[], bool]:
    return (settings.workspace(job_id) / "attempts" / str(epoch) / "environment").exists


def ready(settings: Settings, job_id: str, epoch: int) -> Callable[[], bool]:
    """Whether the stub puts soft stops off."""
    return (settings.workspace(job_id) / "attempts" / str(epoch) / "ready").exists


def asked(settings: Settings, job_id: str, epoch: int) -> Callable[[], bool]:
    """Whether the stub, which puts it off, has been asked to stop softly."""
    return (settings.workspace(job_id) / "attempts" / str(epoch) / "asked").exists


def ask_to_pause(database: Database, job_id: str) -> None:
    with database.write() as session:
        jobs.move(session, job_id, JobState.RUNNING, JobState.PAUSING, "pause_requested")


def ask_to_cancel(database: Database, job_id: str) -> None:
    with database.write() as session:
        row = jobs.lock(session, job_id)
        assert row is not None
        user_actions.cancel(session, row)


def children() -> list[psutil.Process]:
    """Living stages of this test process, which may have started brokers too."""
    found = psutil.Process().children(recursive=True)
    return [child for child in found if _is_stage(child)]


def _is_stage(process: psutil.Process) -> bool:
    try:
        return any("stubs/stage" in word for word in process.cmdline())  # a zombie has no words
    except psutil.NoSuchProcess:
        return False


def attempt(database: Database, job_id: str, epoch: int) -> AttemptRow:
    with database.read() as session:
        return session.get_one(AttemptRow, (job_id, epoch))


@on_sqlite
class TestSystemMetrics:
    def test_of_the_gpus_that_the_attempt_has(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sampled: list[Any] = []

        class Sampler(SystemSampler):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                sampled.append(options["gpus"])
                super().__init__(*arguments, **options)

        monkeypatch.setattr("worker.supervision.supervisor.SystemSampler", Sampler)
        claim = replace(claim_job(database, make_job(database)), gpus=("GPU-b", "GPU-a"))
        assert supervisor(database, settings).supervise(claim) == "queued"
        assert sampled == [("GPU-b", "GPU-a")]


class TestFinish:
    def test_all_stages(self, database: Database, settings: Settings) -> None:
        job_id = make_job(database, training={"save_total_limit": 1})
        states = [run(database, settings, job_id) for _ in range(3)]
        assert states == ["queued", "queued", "succeeded"]
        row = get(database, job_id)
        assert row.results["train"]["metrics"] == {"f1": 50.0}
        assert row.results["train"]["baseline"] == {"f1": "nan"}
        # Training's own: `publish` has none to put in its place.
        assert row.progress is not None
        assert (row.progress["step"], row.progress["of"]) == (3, 3)
        workspace = settings.workspace(job_id)
        assert (workspace / "job.log").read_text() == (
            "stub prepare epoch 1\nstub train epoch 2\nstub publish epoch 3\n"
        )
        with database.read() as session:
            rows = session.scalars(select(MetricRow).order_by(MetricRow.seq))
            metrics = [row.values for row in rows if row.kind != "system"]
        assert metrics == [{"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3}]
        kept = [path.name for path in (workspace / "attempts/2/checkpoints").iterdir()]
        assert kept == ["3"]
        events = history_of(database, job_id)
        assert [row.seq for row in events] == list(range(1, len(events) + 1))

    def test_what_is_no_event_is_dropped(self, database: Database, settings: Settings) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "chatter"})
        assert run(database, settings, job_id) is JobState.QUEUED

    def test_nothing_of_the_stage_lives_on(self, database: Database, settings: Settings) -> None:
        """A grandchild holds the pipe open; the stage ends all the same, and the grandchild too."""
        job_id = make_job(database, metadata={"stub.prepare": "fork"})
        begun = time.monotonic()
        assert run(database, settings, job_id) is JobState.QUEUED
        assert time.monotonic() - begun < 10
        pid = int((settings.workspace(job_id) / "attempts/1/grandchild").read_text())
        services.wait_until(
            lambda: (
                not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
            ),
            5,
            "the grandchild's end",
        )

    def test_secrets_stay_here(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in (
            "FINETUNE_DATABASE_URL",
            "FINETUNE_REDIS_URL",
            "FINETUNE_HUB_TOKEN",
            "HF_TOKEN",
            "MLFLOW_TRACKING_PASSWORD",
            "PGPASSWORD",
        ):
            monkeypatch.setenv(name, "secret")
        settings = settings.model_copy(update={"hub_token": Settings(hub_token="t").hub_token})
        job_id = make_job(database)
        for _ in range(3):
            run(database, settings, job_id)
        attempts = settings.workspace(job_id) / "attempts"
        names = [set((attempts / str(n) / "environment").read_text().split()) for n in (1, 2, 3)]
        for seen in names:
            assert {name for name in seen if name.startswith("FINETUNE_")} == {"FINETUNE_EVENT_FD"}
            assert not {"PGPASSWORD", "MLFLOW_TRACKING_PASSWORD"} & seen
        assert ["HF_TOKEN" in seen for seen in names] == [True, False, True]
        assert ["HF_HUB_OFFLINE" in seen for seen in names] == [False, True, False]


@on_sqlite
class TestFailure:
    @pytest.mark.parametrize(
        ("behaviour", "state", "code"),
        [
            ("fail:unreadable_row", "failed", "unreadable_row"),
            ("fail:network", "queued", "network"),
            ("segfault", "queued", "device_error"),
            ("kill", "queued", "worker_lost"),
            ("exit:3", "failed", "internal"),
        ],
    )
    def test_the_reason_decides(
        self, database: Database, settings: Settings, behaviour: str, state: str, code: str
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": behaviour})
        assert run(database, settings, job_id) == state
        failure = attempt(database, job_id, 1).failure
        assert failure is not None
        assert failure["code"] == code
        final = get(database, job_id).failure
        assert final == (failure if state == "failed" else None)

    def test_a_kill_while_the_kernel_ran_out_of_memory_is_final(
        self,
        database: Database,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        counters = tmp_path / "vmstat"
        counters.write_text("nr_free_pages 1\noom_kill 4\n")
        monkeypatch.setattr(child, "_VMSTAT", counters)
        job_id = make_job(database, metadata={"stub.prepare": f"oom:{counters}"})
        assert run(database, settings, job_id) == "failed"
        failure = attempt(database, job_id, 1).failure
        assert failure is not None
        assert failure["code"] == "out_of_memory"

    def test_an_upload_that_is_gone(self, database: Database, settings: Settings) -> None:
        dataset = {"source": "upload", "train": "file-a", "validation": ["file-b"]}
        job_id = make_job(database, dataset=dataset)
        with database.write() as session:
            session.add(
                FileRow(
                    id="file-a",
                    filename="a.json",
                    purpose="fine-tune",
                    bytes=2,
                    sha256="0" * 64,
                    created_at=jobs.clock(session),
                )
            )
        settings.files_dir.mkdir(parents=True)
        (settings.files_dir / "file-a").write_text("{}")
        assert run(database, settings, job_id) is JobState.FAILED
        failure = get(database, job_id).failure
        assert failure is not None
        assert failure["code"] == "dataset_not_found"
        assert failure["details"] == {"missing": ["file-b"]}

    def test_the_jobs_time_is_up(self, database: Database, settings: Settings) -> None:
        """The time that earlier attempts used counts."""
        job_id = make_job(database, timeout_seconds=100, metadata={"stub.prepare": "hang"})
        put(database, job_id, used_seconds=99.5)
        begun = time.monotonic()
        assert run(database, settings, job_id) is JobState.FAILED
        assert time.monotonic() - begun < 10
        failure = get(database, job_id).failure
        assert failure is not None
        assert failure["code"] == "timeout"

    def test_the_stages_time_is_up(self, database: Database, settings: Settings) -> None:
        """Over all its attempts; those of other stages do not count."""
        limits = {"prepare": 1, "train": 100}
        metadata = {"stub.train": "hang"}
        job_id = make_job(database, stage_timeout_seconds=limits, metadata=metadata)
        put(database, job_id, stage="train")
        claimed = claim_job(database, job_id)
        with database.write() as session:
            session.get_one(AttemptRow, (job_id, 1)).started_at = db_now(-99.5)
            endings.end(session, job_id, claimed.epoch, endings.Ending.released(), POLICY)
        begun = time.monotonic()
        assert run(database, settings, job_id) is JobState.FAILED
        assert time.monotonic() - begun < 10
        failure = get(database, job_id).failure
        assert failure is not None
        assert (failure["code"], failure["details"]) == (
            "timeout",
            {"option": "stage_timeout_seconds.train"},
        )
        assert failure["message"] == (
            "The job was stopped in train: `stage_timeout_seconds.train` allows 100 s."
        )


@on_sqlite
class TestHung:
    def test_it_is_ended_and_tried_again_three_times_without_progress(
        self, database: Database, settings: Settings
    ) -> None:
        settings = settings.model_copy(update={"hung_seconds": 2.0})
        job_id = make_job(database, metadata={"stub.train": "hang"}, max_retries=0)
        run(database, settings, job_id)
        states = [run(database, settings, job_id) for _ in range(3)]
        assert states == ["queued", "queued", "failed"]
        failures = [attempt(database, job_id, epoch).failure for epoch in (2, 3, 4)]
        assert [f is not None and f["code"] for f in failures] == ["hung"] * 3
        assert failures[0] is not None
        assert " after step 3; one takes " in failures[0]["message"]
        row = get(database, job_id)
        assert row.failure is not None
        assert row.failure["code"] == "crash_limit"
        assert "3 attempts in a row at train" in row.failure["message"]
        assert "The last: The stage has done nothing for" in row.failure["message"]
        assert children() == []


class TestStop:
    @pytest.mark.parametrize("behaviour", ["hang", "deaf"])
    def test_cancel(self, database: Database, settings: Settings, behaviour: str) -> None:
        job_id = make_job(database, metadata={"stub.prepare": behaviour})
        thread = meanwhile(lambda: ask_to_cancel(database, job_id), when=started(settings, job_id))
        begun = time.monotonic()
        assert run(database, settings, job_id) is JobState.CANCELLED
        thread.join()
        assert time.monotonic() - begun < 15
        assert attempt(database, job_id, 1).outcome == "cancelled"
        assert children() == []

    def test_a_worker_that_shuts_down_gives_the_job_back(
        self, database: Database, settings: Settings
    ) -> None:
        """At once in a stage that has nothing to lose."""
        job_id = make_job(database, metadata={"stub.prepare": "hang"})
        claimed, shutdown = claim_job(database, job_id), Shutdown()
        thread = meanwhile(shutdown.request, when=started(settings, job_id))
        begun = time.monotonic()
        assert supervisor(database, settings, shutdown).supervise(claimed) is JobState.QUEUED
        thread.join()
        assert time.monotonic() - begun < settings.drain_grace_seconds
        assert (attempt(database, job_id, 1).outcome, get(database, job_id).crash_count) == (
            "released",
            0,
        )

    def test_a_lost_claim_ends_the_stage_and_writes_nothing(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "deaf"})

        def lose() -> None:
            put(database, job_id, lease_until=db_now(-1))
            with database.write() as session:
                endings.expire(session, job_id, POLICY)

        thread = meanwhile(lose, when=started(settings, job_id))
        assert run(database, settings, job_id) is None
        thread.join()
        row = get(database, job_id)
        assert (row.state, row.epoch) == ("queued", 2)
        assert attempt(database, job_id, 1).outcome == "lost"
        assert children() == []

    def test_without_a_beat_the_child_is_killed(
        self, database: Database, settings: Settings, flaky: Flaky
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "deaf"})
        claimed = claim_job(flaky, job_id)
        killed: list[bool] = []

        def outage() -> None:
            flaky.is_away = True
            services.wait_until(lambda: not children(), 15, "the child's end")
            killed.append(True)
            flaky.is_away = False

        thread = meanwhile(outage, when=started(settings, job_id))
        assert supervisor(flaky, settings).supervise(claimed) is JobState.QUEUED
        thread.join()
        assert killed == [True]
        assert attempt(database, job_id, 1).outcome == "released"


@on_sqlite
class TestSoftStop:
    @pytest.mark.parametrize(("wish", "state"), [("pause", "paused"), ("shutdown", "queued")])
    def test_training_goes_on_later_from_the_step_in_hand(
        self, database: Database, settings: Settings, wish: str, state: str
    ) -> None:
        job_id = make_job(database, metadata={"stub.train": "patient", "stub.attempts": "1"})
        run(database, settings, job_id)
        claimed, shutdown = claim_job(database, job_id), Shutdown()

        def ask() -> None:
            ask_to_pause(database, job_id) if wish == "pause" else shutdown.request()

        thread = meanwhile(ask, when=ready(settings, job_id, 2))
        assert supervisor(database, settings, shutdown).supervise(claimed) == state
        thread.join()
        row, ended = get(database, job_id), attempt(database, job_id, 2)
        assert (row.crash_count, row.retry_count, row.worker_id) == (0, 0, None)
        assert (ended.outcome, ended.failure) == ("released", None)
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data["to"]) == ("released", state)
        if wish == "pause":
            with database.write() as session:
                jobs.move(session, job_id, JobState.PAUSED, JobState.QUEUED, "resume_requested")
        assert run(database, settings, job_id) is JobState.QUEUED
        assert attempt(database, job_id, 3).resumed_from_step == 4
        assert get(database, job_id).stage == "publish"

    def test_after_the_grace_it_is_no_longer_soft(
        self, database: Database, settings: Settings
    ) -> None:
        settings = settings.model_copy(update={"drain_grace_seconds": 0.5})
        job_id = make_job(database, metadata={"stub.prepare": "stubborn"})
        thread = meanwhile(lambda: ask_to_pause(database, job_id), when=ready(settings, job_id, 1))
        assert run(database, settings, job_id) is JobState.PAUSED
        thread.join()
        assert children() == []

    @pytest.mark.parametrize("how", ["cancel", "second signal", "timeout"])
    def test_what_is_urgent_does_not_wait_for_the_grace(
        self, database: Database, settings: Settings, how: str
    ) -> None:
        limit = {"timeout_seconds": 5} if how == "timeout" else {}
        job_id = make_job(database, metadata={"stub.prepare": "stubborn"}, **limit)
        claimed, shutdown = claim_job(database, job_id), Shutdown()

        def ask() -> None:
            shutdown.request()
            services.wait_until(asked(settings, job_id, 1), 20, "the soft stop")
            if how == "cancel":
                ask_to_cancel(database, job_id)
            if how == "second signal":
                shutdown.request()

        thread = meanwhile(ask, when=ready(settings, job_id, 1))
        begun = time.monotonic()
        state = supervisor(database, settings, shutdown).supervise(claimed)
        thread.join()
        assert time.monotonic() - begun < 20 < settings.drain_grace_seconds
        assert state == {"cancel": "cancelled", "second signal": "queued", "timeout": "failed"}[how]

    def test_a_stage_that_finishes_instead_has_finished(
        self, database: Database, settings: Settings
    ) -> None:
        """And the job is paused at its next stage."""
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        ask_to_pause(database, job_id)
        with database.write() as session:
            finished = endings.Ending.finished({})
            state = endings.end(session, job_id, claimed.epoch, finished, POLICY)
        assert state is JobState.PAUSED
        assert (get(database, job_id).stage, get(database, job_id).stage_attempt) == ("train", 0)


class TestOutage:
    def test_a_short_one_loses_nothing(
        self, database: Database, settings: Settings, flaky: Flaky
    ) -> None:
        """The database is away from the first event to the end of the stage."""
        job_id = make_job(database)
        run(database, settings, job_id)
        claimed = claim_job(flaky, job_id)

        def outage() -> None:
            flaky.is_away = True
            services.wait_until(lambda: flaky.refused and not children(), 20, "the stage's end")
            flaky.is_away = False

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


class TestResume:
    def test_goes_on_from_the_newest_checkpoint_that_verifies(
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
        failure = get(database, job_id).failure
        assert failure is not None
        assert failure["code"] == "checkpoint_unreadable"

    def test_leftovers_of_pruned_checkpoints_go(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job(database, training={"save_total_limit": 1})
        run(database, settings, job_id)
        run(database, settings, job_id)
        left = settings.workspace(job_id) / "attempts/2/checkpoints/1"
        left.mkdir()
        run(database, settings, job_id)
        assert not left.exists()
        assert left.with_name("3").exists()


@on_sqlite
class TestPublish:
    @pytest.mark.parametrize(
        ("strategy", "steps"), [("end", []), ("checkpoint", [2]), ("all_checkpoints", [2, 1])]
    )
    def test_is_given_the_checkpoints_that_the_hub_wants(
        self, database: Database, settings: Settings, strategy: str, steps: list[int]
    ) -> None:
        """The newest is damaged, and not pushed."""
        job_id = make_job(database, hub={"model_id": "org/m", "strategy": strategy})
        run(database, settings, job_id)
        run(database, settings, job_id)
        folder = settings.workspace(job_id) / "attempts/2/checkpoints"
        (folder / "3" / "state").write_text("damaged")
        run(database, settings, job_id)
        request = (settings.workspace(job_id) / "attempts/3/request.json").read_bytes()
        given = StageRequest.model_validate_json(request).checkpoints
        assert given == [folder / str(step) for step in steps]


def test_request_file_holds_no_secret(database: Database, settings: Settings) -> None:
    job_id = make_job(database)
    run(database, settings, job_id)
    text = Path(settings.workspace(job_id) / "attempts/1/request.json").read_text()
    assert "redis://" not in text
    assert settings.sqlalchemy_url not in text
    assert os.fspath(settings.cache_dir) in text
