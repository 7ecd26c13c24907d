"""An ended job is promoted to a checkpoint, or published."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import Failure, FailureCode
from service.contract.follow_up import Publish, parsed
from service.contract.spec.hub import HubSpec
from service.contract.states import JobState
from service.errors import (
    ArtifactGoneError,
    CheckpointGoneError,
    CheckpointNotFoundError,
    WrongStateError,
)
from service.jobs import commands
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import endings
from service.store.jobs.claims import Claim
from service.store.jobs.endings import Ending
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobRow
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.store.job_rows import PREPARED, add_checkpoint, get, history_of, put

HUB = HubSpec(model_id="org/elsewhere")
TRAINED: dict[str, Any] = {
    "output_dir": "attempts/2/output",
    "weights_sha256": "a" * 64,
    "precision": "fp32",
    "model_step": 30,
}
LOST = Failure.from_code(FailureCode.HUB_FORBIDDEN, "no")


class Service:
    """The commands on one database and home, with a job that has succeeded at step 30."""

    def __init__(self, database: Database, unreachable: Dispatcher, home: Path) -> None:
        self.database, self.unreachable, self.settings = database, unreachable, Settings(home=home)
        self.job_id = make_job(database)
        folders = [home / PREPARED[name] for name in ("prepared_dir", "model_dir")]
        output = self.settings.workspace(self.job_id) / TRAINED["output_dir"]
        for folder in (*folders, output):
            folder.mkdir(parents=True)
        self.results = {"prepare": PREPARED, "train": TRAINED, "publish": {"hub_url": None}}
        self.put(
            state=JobState.SUCCEEDED,
            stage="publish",
            epoch=3,
            ended_at=db_now(),
            tracking_final=True,
            results=self.results,
            used_seconds=50.0,
            progress={"step": 30, "of": 30},
        )
        for step in (10, 20, 30):
            add_checkpoint(database, self.job_id, step)

    def put(self, **values: Any) -> None:
        put(self.database, self.job_id, **values)

    @property
    def row(self) -> JobRow:
        return get(self.database, self.job_id)

    def promote(self, step: int = 10) -> JobState:
        return commands.promote(
            self.database, self.unreachable, self.settings, EVERYTHING, self.job_id, step
        )

    def publish(self, hub: HubSpec = HUB) -> JobState:
        return commands.publish(
            self.database, self.unreachable, self.settings, EVERYTHING, self.job_id, hub
        )

    def retry(self) -> JobState:
        return commands.retry(
            self.database, self.unreachable, self.settings, EVERYTHING, self.job_id
        )

    def claim(self) -> Claim:
        return claim_job(self.database, self.job_id)

    def end(self, claimed: Claim, ending: Ending) -> JobState | None:
        with self.database.write() as session:
            return endings.end(session, self.job_id, claimed.epoch, ending, POLICY)


@pytest.fixture
def service(database: Database, unreachable: Dispatcher, tmp_path: Path) -> Service:
    return Service(database, unreachable, tmp_path)


class TestPromote:
    def test_from_train_on_to_the_end(self, service: Service) -> None:
        assert service.promote() is JobState.QUEUED
        row = service.row
        assert (row.state, row.stage, row.ended_at) == ("queued", "train", None)
        assert (row.tracking_final, row.used_seconds) == (False, 0.0)
        assert row.results == service.results  # until there are new ones
        assert row.progress == {"step": 30, "of": 30}
        asked = history_of(service.database, service.job_id)[-1]
        assert asked.type == "promote_requested"
        assert asked.data["follow_up"] == {"action": "promote", "step": 10}

        training = service.claim()
        assert training.follow_up == {"action": "promote", "step": 10}
        made = {**TRAINED, "output_dir": "attempts/4/output", "model_step": 10}
        assert service.end(training, Ending.finished(made)) is JobState.QUEUED
        assert service.row.stage == "publish"
        publishing = service.claim()
        assert service.end(publishing, Ending.finished({})) is JobState.SUCCEEDED
        row = service.row
        assert (row.results["train"], row.follow_up) == (made, None)
        assert service.promote() is JobState.SUCCEEDED  # it is that already
        assert service.row.event_seq == row.event_seq

    def test_asked_twice(self, service: Service) -> None:
        service.promote()
        seq = service.row.event_seq
        assert service.promote() is JobState.QUEUED
        claimed = service.claim()
        assert service.promote() is JobState.RUNNING
        assert service.row.event_seq == seq + 1  # of the claim
        for other in (lambda: service.promote(20), service.publish):
            with pytest.raises(WrongStateError, match="this one is running"):
                other()
        assert service.end(claimed, Ending.cancelled()) is not None

    def test_a_failure_keeps_the_earlier_result_and_can_be_retried(self, service: Service) -> None:
        service.promote()
        assert service.end(service.claim(), Ending.failed(LOST)) is JobState.FAILED
        assert service.row.results == service.results
        assert service.retry() is JobState.QUEUED
        row = service.row
        assert (row.stage, row.results) == ("train", service.results)
        assert service.claim().follow_up == {"action": "promote", "step": 10}

    def test_a_pause_a_cancel_and_another_action(self, service: Service) -> None:
        service.promote()
        commands.pause(service.database, EVERYTHING, service.job_id)
        commands.resume(service.database, service.unreachable, EVERYTHING, service.job_id)
        assert (
            commands.cancel(service.database, service.unreachable, EVERYTHING, service.job_id)
            == "cancelled"
        )
        assert service.promote(20) is JobState.QUEUED
        assert service.claim().follow_up == {"action": "promote", "step": 20}

    def test_a_checkpoint_that_is_not_there(self, service: Service) -> None:
        with pytest.raises(CheckpointNotFoundError, match="no checkpoint of step 11"):
            service.promote(11)
        add_checkpoint(service.database, service.job_id, 5, pruned_at=db_now())
        with pytest.raises(CheckpointGoneError, match="step 5 was removed"):
            service.promote(5)
        assert service.row.state == "succeeded"

    def test_removed_data_is_prepared_again(self, service: Service) -> None:
        (service.settings.home / PREPARED["prepared_dir"]).rmdir()
        service.promote()
        row = service.row
        assert (row.state, row.stage, row.results) == ("queued", "prepare", service.results)
        assert history_of(service.database, service.job_id)[-1].data["missing"] == ["prepared_data"]
        service.end(service.claim(), Ending.finished(service.results["prepare"]))
        claimed = service.claim()
        assert (claimed.stage, claimed.follow_up) == ("train", {"action": "promote", "step": 10})

    def test_of_a_failed_training_without_a_result(self, service: Service) -> None:
        prepared = {"prepare": service.results["prepare"]}
        service.put(state=JobState.FAILED, stage="train", results=prepared)
        assert service.promote() is JobState.QUEUED

    @pytest.mark.parametrize("state", ["queued", "running", "paused", "cancelling"])
    def test_not_before_the_end(self, service: Service, state: str) -> None:
        service.put(state=state)
        with pytest.raises(WrongStateError):
            service.promote()


class TestPublish:
    def test_the_finished_model_alone(self, service: Service) -> None:
        assert service.publish() is JobState.QUEUED
        claimed = service.claim()
        assert (claimed.stage, parsed(claimed.follow_up)) == ("publish", Publish(hub=HUB))
        pushed = {"hub_url": "https://hub/org/elsewhere", "hub_commit": "c" * 40}
        assert service.end(claimed, Ending.finished(pushed)) is JobState.SUCCEEDED
        row = service.row
        assert row.results == {**service.results, "publish": pushed}
        assert (row.follow_up, row.spec["hub"]) == (None, None)

    def test_elsewhere_after_a_push_that_was_refused(self, service: Service) -> None:
        results = {name: service.results[name] for name in ("prepare", "train")}
        service.put(state=JobState.FAILED, results=results)
        service.publish()
        service.end(service.claim(), Ending.failed(LOST))
        assert service.row.state == "failed"
        other = HubSpec(model_id="org/third")
        assert service.publish(other) is JobState.QUEUED
        assert parsed(service.claim().follow_up) == Publish(hub=other)

    def test_without_a_model(self, service: Service) -> None:
        service.put(state=JobState.CANCELLED, results={})
        with pytest.raises(WrongStateError, match="no finished model"):
            service.publish()

    def test_a_model_that_was_removed(self, service: Service) -> None:
        service.put(workspace_pruned_at=db_now())
        with pytest.raises(ArtifactGoneError, match="clone the job"):
            service.publish()

    def test_a_retry_makes_no_other_model(self, service: Service) -> None:
        """Without a follow-up a retry would train again; but the user already has a model."""
        service.publish()
        service.end(service.claim(), Ending.failed(LOST))
        service.put(workspace_pruned_at=db_now())
        with pytest.raises(ArtifactGoneError):
            service.retry()
