"""The supervisor of an attempt: how it ends, what the database holds, what a stage is given."""

import os
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database, clock, db_now
from service.store.jobs import endings
from service.store.tables.files import FileRow
from service.store.tables.jobs import AttemptRow, MetricRow
from tests.supervision.support import (
    attempt,
    children,
    run,
    supervisor,
)
from tests.support.factories import POLICY, claim_job, make_job, make_spec
from tests.support.servers import services
from tests.support.store.databases import on_sqlite
from tests.support.store.job_rows import failure_of, get, history_of, put
from worker.processes import child
from worker.supervision import stage_request
from worker.supervision.system_metrics import SystemSampler
from worker.tracking.trackers import NullTracker

pytestmark = pytest.mark.long


@pytest.mark.usefixtures("processes")
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


@pytest.mark.usefixtures("processes")
class TestFinish:
    def test_all_stages(self, database: Database, settings: Settings) -> None:
        job_id = make_job(database, training={"save_total_limit": 1})
        states = [run(database, settings, job_id) for _ in range(3)]
        assert states == ["queued", "queued", "succeeded"]
        row = get(database, job_id)
        assert row.results["train"]["metrics"] == {"f1": 50.0}
        assert row.results["train"]["baseline"] == {"f1": "nan"}
        # The progress of `train`: `publish` reports none.
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

    def test_invalid_events_are_dropped(self, database: Database, settings: Settings) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "chatter"})
        assert run(database, settings, job_id) is JobState.QUEUED

    def test_no_process_of_the_stage_survives(self, database: Database, settings: Settings) -> None:
        """A grandchild holds the pipe open; stage and grandchild end nevertheless."""
        job_id = make_job(database, metadata={"stub.prepare": "fork"})
        begun = time.monotonic()
        assert run(database, settings, job_id) is JobState.QUEUED
        assert time.monotonic() - begun < 10
        seconds = (settings.workspace(job_id) / "attempts/1/grandchild").read_text()

        def has_ended() -> bool:
            running = (process.info["cmdline"] for process in psutil.process_iter(["cmdline"]))
            return all(seconds not in (words or []) for words in running)

        services.wait_until(has_ended, 5, "the grandchild's end")

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
        request = (attempts / "1/request.json").read_text()
        assert "redis://" not in request
        assert settings.sqlalchemy_url not in request
        assert os.fspath(settings.cache_dir) in request
        names = [set((attempts / str(n) / "environment").read_text().split()) for n in (1, 2, 3)]
        for seen in names:
            assert {name for name in seen if name.startswith("FINETUNE_")} == {"FINETUNE_EVENT_FD"}
            assert not {"PGPASSWORD", "MLFLOW_TRACKING_PASSWORD"} & seen
        assert ["HF_TOKEN" in seen for seen in names] == [True, False, True]
        assert ["HF_HUB_OFFLINE" in seen for seen in names] == [False, True, False]


@on_sqlite
class TestFailure:
    @pytest.mark.usefixtures("processes")
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

    @pytest.mark.usefixtures("processes")
    def test_a_kill_while_the_kernel_ran_out_of_memory_is_final(
        self,
        database: Database,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "oom:vmstat"})
        counters = settings.workspace(job_id) / "attempts/1/vmstat"  # where the stub may write
        monkeypatch.setattr(child, "_VMSTAT", counters)
        assert run(database, settings, job_id) == "failed"
        failure = attempt(database, job_id, 1).failure
        assert failure is not None
        assert failure["code"] == "out_of_memory"

    def test_a_removed_upload(self, database: Database, settings: Settings) -> None:
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
                    created_at=clock(session),
                )
            )
        settings.files_dir.mkdir(parents=True)
        (settings.files_dir / "file-a").write_text("{}")
        assert run(database, settings, job_id) is JobState.FAILED
        failure = failure_of(database, job_id)
        assert failure["code"] == "dataset_not_found"
        assert failure["details"] == {"missing": ["file-b"]}

    @pytest.mark.usefixtures("processes")
    def test_the_stages_time_is_up(self, database: Database, settings: Settings) -> None:
        """The stage's attempts count together; other stages do not count."""
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
        failure = failure_of(database, job_id)
        assert (failure["code"], failure["details"]) == (
            "timeout",
            {"option": "stage_timeout_seconds.train"},
        )
        assert failure["message"] == (
            "The job was stopped in train: `stage_timeout_seconds.train` allows 100 s."
        )


@pytest.mark.usefixtures("processes")
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


@pytest.mark.usefixtures("processes")
@on_sqlite
class TestPublish:
    def test_is_given_the_checkpoints_that_the_hub_wants(
        self, database: Database, settings: Settings
    ) -> None:
        """The newest checkpoint is damaged and is not pushed."""
        job_id = make_job(database)
        run(database, settings, job_id)
        run(database, settings, job_id)
        folder = settings.workspace(job_id) / "attempts/2/checkpoints"
        (folder / "3" / "state").write_text("damaged")
        claim = claim_job(database, job_id)
        given: dict[str, Any] = {}
        for strategy in ("end", "checkpoint", "all_checkpoints"):
            asked = replace(claim, spec=make_spec(hub={"model_id": "org/m", "strategy": strategy}))
            request = stage_request.build(database, settings, NullTracker(), asked)
            given[strategy] = request.checkpoints
        two, one = folder / "2", folder / "1"
        assert given == {"end": [], "checkpoint": [two], "all_checkpoints": [two, one]}
