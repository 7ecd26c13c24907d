"""A job that ends more than once, or is deleted, has one run."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from service.contract.failures import Failure, FailureCode
from service.contract.stage.events import Metric
from service.contract.states import Stage
from service.store.jobs import endings, state, user_actions
from service.store.jobs.endings import Ending
from service.store.scope import EVERYTHING
from tests.support.factories import POLICY, claim_job
from tests.tracking.conftest import PREPARED, Job
from tests.tracking.support import TRAINED, expected_points, shipped_points, train
from worker.tracking.trackers import Description, MlflowTracker, Point, RunStatus

REFUSED = Failure.from_code(FailureCode.HUB_FORBIDDEN, "Not your namespace")


def end(job: Job, ending: Ending) -> None:
    with job.database.write() as session:
        assert endings.end(session, job.id, job.claim.epoch, ending, POLICY) is not None


def go_on(job: Job) -> None:
    job.claim = claim_job(job.database, job.id)


def retry(job: Job) -> None:
    with job.database.write() as session:
        row = state.lock(session, EVERYTHING, job.id)
        assert row is not None
        user_actions.retry(session, row, Stage(row.stage), [])


def delete(job: Job) -> None:
    with job.database.write() as session:
        row = state.lock(session, EVERYTHING, job.id)
        assert row is not None
        user_actions.remove(session, row)


def fail_at_publish(job: Job) -> None:
    end(job, Ending.finished(PREPARED.model_dump(mode="json")))
    go_on(job)
    train(job, range(1, 30))
    end(job, Ending.finished(TRAINED))
    go_on(job)
    end(job, Ending.failed(REFUSED))


class TestRetry:
    def test_one_run_that_is_running_again_and_ends_as_the_job_does(self, job: Job) -> None:
        fail_at_publish(job)
        assert job.ship()
        failed = job.run
        assert (failed.info.status, failed.data.tags["finetune.state"]) == ("FAILED", "failed")
        assert failed.data.tags["finetune.failure_code"] == "hub_forbidden"
        retry(job)
        go_on(job)
        with job.ship_in_background():
            pass
        running = job.run
        assert running.info.run_id == failed.info.run_id
        assert running.info.status == "RUNNING"
        assert {name for name in running.data.tags if name.startswith("finetune.")} == {
            *("finetune.job_id", "finetune.task", "finetune.model", "finetune.dataset")
        }
        end(job, Ending.finished({"hub_url": "https://hub/org/m", "hub_commit": "e" * 40}))
        assert job.ship()
        run = job.run
        assert (run.info.status, run.data.tags["finetune.state"]) == ("FINISHED", "succeeded")
        ended = job.row.ended_at
        assert ended is not None
        assert run.info.end_time == round(ended.timestamp() * 1000)
        points = shipped_points(job)
        ends = ("result_", "test_")
        final = {name: points.pop(name) for name in list(points) if name.startswith(ends)}
        assert points == expected_points(job)
        assert {name: [value for _, value, _ in found] for name, found in final.items()} == {
            "result_eval_f1": [81.25],
            "result_train_runtime": [3.5],
            "test_f1": [79.5],
            "result_best_step": [15],
            "result_best_metric": [81.25],
        }

    def test_metrics_of_steps_that_are_repeated_are_kept_once(self, job: Job) -> None:
        end(job, Ending.finished(PREPARED.model_dump(mode="json")))
        go_on(job)
        train(job, range(1, 10))
        end(job, Ending.failed(Failure.from_code(FailureCode.OUT_OF_MEMORY, "too big")))
        assert job.ship()
        retry(job)
        go_on(job)
        train(job, range(5, 15))
        assert not job.ship()
        points = shipped_points(job)
        assert [step for step, _, _ in points["loss"]] == list(range(1, 15))

    def test_a_retry_while_the_end_is_sent_wins(self, job: Job) -> None:
        class Slow(MlflowTracker):
            def end(
                self, run_id: str, status: RunStatus, at: datetime, tags: Mapping[str, str]
            ) -> None:
                retry(job)
                super().end(run_id, status, at, tags)

        fail_at_publish(job)
        assert not job.ship(Slow(job.tracker._uri))
        assert job.run.info.status == "RUNNING"
        assert (job.row.state, job.row.tracking_final) == ("queued", False)

    def test_an_end_while_the_run_is_reopened_wins(self, job: Job) -> None:
        class Slow(MlflowTracker):
            def reopen(self, run_id: str, tags: Sequence[str]) -> None:
                end(job, Ending.failed(REFUSED))
                super().reopen(run_id, tags)

        fail_at_publish(job)
        assert job.ship()
        retry(job)
        go_on(job)
        with job.ship_in_background(Slow(job.tracker._uri)):
            pass
        run = job.run
        assert (run.info.status, run.data.tags["finetune.state"]) == ("FAILED", "failed")

    def test_a_description_that_is_sent_late_tells_the_end(self, job: Job) -> None:
        class Slow(MlflowTracker):
            def describe(self, run_id: str, description: Description) -> None:
                if job.row.ended_at is None:
                    end(job, Ending.failed(REFUSED))
                    assert job.ship()
                super().describe(run_id, description)

        with job.ship_in_background(Slow(job.tracker._uri)):
            pass
        note = job.run.data.tags["mlflow.note.content"]
        assert "Failed: `hub_forbidden`" in note


class TestDelete:
    def test_a_job_deleted_while_its_end_is_sent_leaves_a_run_that_ended(self, job: Job) -> None:
        class Slow(MlflowTracker):
            def log_points(self, run_id: str, points: Sequence[Point]) -> None:
                super().log_points(run_id, points)
                if "loss" in {point.key for point in points}:
                    delete(job)

        # Two pages of numbers.
        job.record(*(Metric(kind="train", step=n, values={"loss": 1.0}) for n in range(150)))
        end(job, Ending.failed(REFUSED))
        assert not job.ship(Slow(job.tracker._uri))
        assert job.run.info.status == "FAILED"

    def test_a_deleted_job_has_nothing_to_ship(self, job: Job) -> None:
        end(job, Ending.failed(REFUSED))
        delete(job)
        assert job.ship()
