"""Rows in SQL are shipped to a real MLflow server."""

import json
import math
import socket
import threading
import time
from pathlib import Path

import pytest

from chaos.faults.weather import Weather, WeatherProxy
from service.settings import Settings
from service.store.database import db_now
from service.store.tracking import jobs as store
from tests.support.servers.services import free_port, wait_until
from tests.support.threads import at_once
from tests.tracking.conftest import PREPARED, Job, MakeJob
from tests.tracking.support import TRAINED, expected_points, shipped_points, train
from worker.tracking import runs
from worker.tracking.model_registry import FinishedModel
from worker.tracking.shipper import ensure_run, make_tracker
from worker.tracking.trackers import (
    JOB_ID_TAG,
    MlflowTracker,
    NewRun,
    NullTracker,
    TrackerRejectedError,
)


class TestMakeTracker:
    def test_mlflow_only_where_it_is_set_up(self) -> None:
        assert isinstance(make_tracker(Settings(mlflow_uri=None)), NullTracker)
        assert isinstance(make_tracker(Settings(mlflow_uri="http://127.0.0.1:1")), MlflowTracker)


class TestMetrics:
    def test_all_numbers_arrive_with_their_steps_and_times(self, job: Job) -> None:
        job.metric("eval", 0, eval_loss=5.0, eval_f1=7.5)
        train(job, range(1, 250))
        job.metric("system", 12, cpu_percent=93.5)
        job.metric("eval", 250, epoch=2.0, f1=80.0)
        assert not job.ship()
        run = job.run
        assert run.info.status == "RUNNING"
        assert shipped_points(job) == expected_points(job)
        assert set(run.data.metrics) == {
            *("eval_loss", "eval_f1", "loss", "learning_rate", "epoch", "system/cpu_percent"),
            "train/loss",
        }
        row = job.row
        assert row.tracked_seq == row.metric_seq == 252
        assert (row.mlflow_run_id, row.mlflow_experiment_id) == (
            run.info.run_id,
            run.info.experiment_id,
        )

    def test_sent_twice_kept_once(self, job: Job) -> None:
        train(job, range(5))
        job.ship()
        # As if the process had died between MLflow's answer and the cursor's commit.
        job.update(tracked_seq=0)
        job.ship()
        assert shipped_points(job) == expected_points(job)

    def test_values_that_are_not_finite(self, job: Job) -> None:
        job.metric("train", 1, loss=math.nan, grad_norm=math.inf)
        job.ship()
        metrics = job.run.data.metrics
        assert math.isnan(metrics["loss"])
        assert metrics["grad_norm"] == pytest.approx(1.797e308, rel=1e-3)

    def test_the_cursor_never_goes_back(self, job: Job) -> None:
        with job.database.write() as session:
            store.advance(session, job.id, 7)
            store.advance(session, job.id, 3)
        assert job.row.tracked_seq == 7


class TestDescription:
    def test_params_tags_spec_and_data(self, make: MakeJob, tmp_path: Path) -> None:
        job = make(
            name="my\u202ejob",
            training={"learning_rate": 3e-5, "max_steps": 7},
            dataset={"source": "hub", "name": "squad", "columns": {"context": "x" * 4000}},
            tracking={"tags": {"team": "nlp", "bad key?/..": "v"}},
            metadata={"cost-centre": "42"},
        )
        job.ship()
        rows = {"rows_read": 54, "rows_used": 52, "rows_skipped": 2, "realigned": 14}
        report = {"splits": {"train": {**rows, "skipped_by_reason": {"empty_text": 2}}}}
        prepared = PREPARED.model_copy(update={"data_report": report})
        job.update(results={"prepare": prepared.model_dump(mode="json")})
        job.ship()
        run = job.run
        assert {name: int(run.data.params[f"data.train.{name}"]) for name in rows} == rows
        assert run.info.run_name == r"my\u202ejob"
        params = run.data.params
        assert params["learning_rate"] == "3e-05"
        assert params["max_steps"] == "7"
        assert params["model.name_or_path"] == "org/model"
        assert params["task.type"] == "question-answering"
        assert params["model_revision"] == "a" * 40
        assert params["data_fingerprint"] == "c" * 64
        assert params["precision"] == "auto"
        assert "resolved_precision" not in params
        assert "hub" not in params
        assert "model.revision" not in params
        tags = run.data.tags
        assert tags["finetune.job_id"] == job.id
        assert tags["finetune.dataset"] == "squad"
        assert tags["team"] == "nlp"
        assert tags["_bad key__.."] == "v"
        assert tags["metadata.cost-centre"] == "42"
        assert run.inputs is not None
        (data,) = run.inputs.dataset_inputs
        assert (data.dataset.name, data.dataset.digest) == ("squad (train)", "c" * 36)
        path = job.client.download_artifacts(run.info.run_id, "spec.json", str(tmp_path))
        assert json.loads(Path(path).read_text())["training"]["learning_rate"] == 3e-5

    def test_a_long_value_is_cut_and_never_sent_again_differently(self, make: MakeJob) -> None:
        files = [f"file-{index:060d}" for index in range(150)]
        job = make(dataset={"source": "upload", "train": files})
        for _ in range(2):
            job.ship()
        value = job.run.data.params["dataset.train"]
        assert len(value) == 6000
        assert value.endswith("…")

    def test_a_changed_default_does_not_stop_the_shipping(self, job: Job) -> None:
        job.ship()
        spec = job.row.spec
        job.update(spec=spec | {"training": spec["training"] | {"logging_steps": 77}})
        train(job, range(3))
        job.ship()
        run = job.run
        assert run.data.params["logging_steps"].startswith("500")
        assert len(shipped_points(job)["loss"]) == 3


class TestRun:
    def test_ensure_run_gives_the_same_one_again(self, job: Job) -> None:
        first = ensure_run(job.database, job.tracker, job.id)
        assert first == ensure_run(job.database, job.tracker, job.id) == job.row.mlflow_run_id
        assert job.run.info.run_id == first

    def test_a_creation_whose_answer_was_lost_is_found_again(self, job: Job) -> None:
        job.tracker.create(NewRun(job.experiment, "lost", {JOB_ID_TAG: job.id}, job.row.created_at))
        run_id = ensure_run(job.database, job.tracker, job.id)
        assert job.run.info.run_id == run_id

    def test_two_shippers_at_once_end_with_one_run(self, job: Job) -> None:
        barrier = threading.Barrier(2)

        class Slow(MlflowTracker):
            def create(self, run: NewRun) -> None:
                barrier.wait(30)  # both have searched and found none
                super().create(run)

        ids: list[str | None] = []
        slow = Slow(job.tracker._uri)
        job.tracker.create(NewRun(job.experiment, "other", {JOB_ID_TAG: "x"}, job.row.created_at))
        raised = at_once(2, lambda: ids.append(ensure_run(job.database, slow, job.id)))
        assert raised == []
        kept = job.row.mlflow_run_id
        assert ids == [kept, kept]
        assert job.run.info.run_id == kept

    def test_no_tracker_and_an_unreachable_one_give_none(self, job: Job) -> None:
        assert ensure_run(job.database, NullTracker(), job.id) is None
        unreachable = MlflowTracker(f"http://127.0.0.1:{free_port()}")
        assert ensure_run(job.database, unreachable, job.id) is None
        assert job.row.mlflow_run_id is None


class TestEnd:
    @pytest.mark.parametrize(
        ("state", "status"),
        [("succeeded", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED")],
    )
    def test_the_run_ends_as_the_job_did(self, job: Job, state: str, status: str) -> None:
        train(job, range(3))
        failure = {"code": "non_finite_loss", "message": "The loss is NaN at step 3"}
        published = {"hub_url": "https://hub/org/m", "hub_commit": "e" * 40}
        job.end(
            state,
            failure=failure if state == "failed" else None,
            results={"train": TRAINED, "publish": published} if state == "succeeded" else {},
        )
        assert job.ship()
        run = job.run
        assert run.data.params.get("resolved_precision") == (
            "bf16" if state == "succeeded" else None
        )
        ended = job.row.ended_at
        assert ended is not None
        assert run.info.status == status
        assert run.info.end_time == round(ended.timestamp() * 1000)
        assert run.data.tags["finetune.state"] == state
        if state == "failed":
            assert run.data.tags["finetune.failure_code"] == "non_finite_loss"
        if state == "succeeded":
            assert run.data.tags["finetune.hub_commit"] == "e" * 40
            final = {
                name: (found.value, found.step)
                for name in ("eval_f1", "best_step", "best_metric", "train_runtime")
                for found in job.client.get_metric_history(run.info.run_id, f"result_{name}")
            }
            assert final == {
                "eval_f1": (81.25, 15),
                "best_step": (15, 15),
                "best_metric": (81.25, 15),
                "train_runtime": (3.5, 20),
            }
            (test,) = job.client.get_metric_history(run.info.run_id, "test_f1")
            assert (test.value, test.step) == (79.5, 15)
        assert job.row.tracking_final is True
        assert job.ship()

    def test_registered_files_that_the_run_lacks_are_sent(self, job: Job) -> None:
        names = {"model/config.json": "{}", "predictions.json": '{"q": "a"}', "model/sub/x": "y"}
        for name, text in names.items():
            job.write_artifact(name, text.encode())
        job.end("succeeded")
        assert job.ship()
        run_id = job.run.info.run_id
        sizes = {name: len(text) for name, text in names.items()}
        assert {k: v for k, v in job.tracker.sizes(run_id).items() if k in sizes} == sizes

    def test_the_model_is_logged_and_registered_once(self, make: MakeJob, tmp_path: Path) -> None:
        name = f"squad {tmp_path.name}"
        jobs_made = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            job = make(folder, name="a/b", tracking={"register_as": name})
            jobs_made.append(job)
            job.write_artifact("model/README.md", b"# card")
            job.end("succeeded", results={"train": TRAINED})
        older, newer = jobs_made
        for job in (older, newer, older):  # the end of the older one is shipped twice
            job.update(tracking_final=False)
            assert job.ship()
        runs = [job.run for job in jobs_made]
        client = newer.client
        versions = client.search_model_versions(f"name = '{name}'")
        assert {int(one.version): one.run_id for one in versions} == {
            number: run.info.run_id for number, run in enumerate(runs, start=1)
        }
        newest = client.get_model_version_by_alias(name, "newest")
        assert (int(newest.version), newest.source) == (2, f"{runs[1].info.artifact_uri}/model")
        assert newest.tags == {"finetune.job_id": newer.id}
        for number, (job, run) in enumerate(zip(jobs_made, runs, strict=True), start=1):
            assert run.outputs is not None
            (output,) = run.outputs.model_outputs
            logged = client.get_logged_model(output.model_id)
            assert (logged.name, logged.status, output.step) == ("a-b", "READY", 15)
            assert logged.source_run_id == run.info.run_id
            assert logged.tags["finetune.artifacts"] == f"{run.info.artifact_uri}/model"
            assert logged.tags["finetune.job_id"] == job.id
            shown = json.loads(logged.tags["mlflow.modelVersions"])
            assert shown == [{"name": name, "version": str(number)}]

    def test_a_failed_job_registers_nothing(self, make: MakeJob, tmp_path: Path) -> None:
        job = make(tracking={"register_as": f"failed {tmp_path.name}"})
        job.write_artifact("model/README.md", b"# card")
        job.end("failed", results={"train": TRAINED})
        assert job.ship()
        assert job.client.search_model_versions(f"name = 'failed {tmp_path.name}'") == []
        outputs = job.run.outputs
        assert outputs is not None
        assert outputs.model_outputs == []

    def test_a_server_without_a_registry_costs_nothing_else(self, make: MakeJob) -> None:
        class Old(MlflowTracker):
            def add_model(self, run_id: str, model: FinishedModel) -> None:
                raise TrackerRejectedError("no such route")

        job = make()
        job.write_artifact("model/README.md", b"# card")
        job.end("succeeded", results={"train": TRAINED})
        assert job.ship(Old(job.tracker._uri))
        assert job.run.info.status == "FINISHED"

    def test_cancelled_before_anything_happened_makes_no_run(self, job: Job) -> None:
        job.end("cancelled")
        assert job.ship()
        assert job.runs == []
        assert job.row.tracking_final is True

    def test_cancelled_with_a_run_that_was_not_noted(self, job: Job) -> None:
        job.tracker.create(NewRun(job.experiment, "lost", {JOB_ID_TAG: job.id}, job.row.created_at))
        job.end("cancelled")
        assert job.ship()
        assert job.run.info.status == "KILLED"

    def test_without_a_tracker_all_is_final_at_once(self, job: Job) -> None:
        train(job, range(3))
        assert not job.ship(NullTracker())
        job.end("succeeded")
        assert job.ship(NullTracker())
        assert job.row.tracking_final is True

    def test_a_run_that_the_user_deleted_is_left_alone(self, job: Job) -> None:
        train(job, range(3))
        job.ship()
        job.client.delete_run(job.run.info.run_id)
        train(job, range(3, 6))
        job.end("succeeded")
        assert job.ship()
        assert job.row.tracking_final is True
        assert job.runs == []


class TestAway:
    @pytest.mark.parametrize("weather", [Weather.LOST, Weather.TRUNCATED])
    def test_cut_in_the_middle_loses_and_doubles_nothing(self, job: Job, weather: Weather) -> None:
        """The server handles the request, but its answer is lost or cut; then it is unreachable."""
        now: list[Weather | None] = [None]
        hits: list[str] = []

        def forecast(_method: str, path: str) -> Weather | None:
            hits.append(path)
            return now[0]

        with (
            WeatherProxy(job.tracker._uri, forecast) as proxy,
            job.ship_in_background(MlflowTracker(proxy.url), interval=0.1),
        ):
            train(job, range(100))
            wait_until(lambda: job.row.tracked_seq > 0, 20, "the first numbers")
            for number, now[0] in enumerate((weather, Weather.UNREACHABLE), start=1):
                train(job, range(100 * number, 100 * (number + 1)))
                hits.clear()
                wait_until(lambda: bool(hits), 20, "a request in bad weather")
            now[0] = None
            train(job, range(300, 400))
            wait_until(lambda: job.row.tracked_seq == 400, 60, "the rest of the numbers")
        assert shipped_points(job) == expected_points(job)

    def test_a_job_that_ends_meanwhile_is_finished_later(self, job: Job) -> None:
        train(job, range(10))
        unreachable = MlflowTracker(f"http://127.0.0.1:{free_port()}")
        assert not job.ship(unreachable)
        assert job.row.tracking_retry_at is None
        job.end("succeeded")
        assert not job.ship(unreachable)
        row = job.row
        assert row.tracking_final is False
        assert row.tracking_retry_at is not None
        assert row.ended_at is not None
        assert 9 < (row.tracking_retry_at - row.ended_at).total_seconds() < 60
        assert job.ship()
        assert job.row.tracking_retry_at is None
        run = job.run
        assert run.info.status == "FINISHED"
        assert shipped_points(job) == expected_points(job)

    def test_the_pauses_grow_and_it_gives_up_after_a_week(self, job: Job) -> None:
        unreachable = MlflowTracker(f"http://127.0.0.1:{free_port()}")
        job.end("succeeded")
        waits = []
        for seconds in (100, 86400):
            self._ended_ago(job, seconds)
            job.ship(unreachable)
            with job.database.read() as session:
                loaded = store.load(session, job.id)
            assert loaded is not None
            retry, ended = job.row.tracking_retry_at, job.row.ended_at
            assert retry is not None
            assert ended is not None
            waits.append((retry - ended).total_seconds() - loaded.seconds_since_end)
        assert waits == [pytest.approx(100, abs=15), pytest.approx(600, abs=15)]
        self._ended_ago(job, runs._GIVE_UP_AFTER + 60)
        assert job.ship(unreachable)

    def _ended_ago(self, job: Job, seconds: float) -> None:
        job.update(ended_at=db_now(-seconds))

    def test_a_silent_server_blocks_nothing(self, job: Job) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            tracker = MlflowTracker(f"http://127.0.0.1:{silent.getsockname()[1]}")
            started = time.monotonic()
            with job.ship_in_background(tracker):
                train(job, range(3))
                assert time.monotonic() - started < 2
            assert time.monotonic() - started < 12
        assert job.row.tracked_seq == 0
