"""The files of deleted jobs and searches go from a real MLflow server, whose disk is measured."""

from pathlib import Path

import pytest

from service.contract.search.spec import SearchSpec
from service.jobs import commands
from service.searches import commands as search_commands
from service.settings import Settings
from service.store.database import Database
from service.store.files import retention
from service.store.scope import EVERYTHING
from service.store.searches import state
from service.store.tables.projects import DEFAULT_PROJECT
from service.store.tracking import removals
from tests.searches.simulated_worker import search_spec
from tests.support.servers import shared_servers
from tests.tracking.conftest import Job, MakeJob
from tests.tracking.support import TRAINED, train
from worker.tracking import run_removal
from worker.tracking.trackers import MlflowTracker

_WEIGHTS = 300_000
_FILES = {"model/model.safetensors": _WEIGHTS, "model/README.md": 6, "predictions.json": 2}
_AWAY = MlflowTracker("http://127.0.0.1:1", timeout_seconds=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def stored_bytes(run_id: str) -> int:
    """On MLflow's disk."""
    files = shared_servers.folder().glob(f"*/artifacts/*/{run_id}/artifacts/**/*")
    return sum(file.stat().st_size for file in files if file.is_file())


def finish(job: Job) -> str:
    """With a model; the id of its run."""
    train(job, range(3))
    for name, size in _FILES.items():
        job.write_artifact(name, b"\1" * size)
    job.end("succeeded", results={"train": TRAINED})
    assert job.ship()
    run_id = str(job.run.info.run_id)
    assert stored_bytes(run_id) > _WEIGHTS
    return run_id


def waiting(database: Database) -> list[str]:
    with database.read() as session:
        return removals.due(session, 10)


class TestDeletedJob:
    def test_its_files_go_and_its_metrics_stay(self, job: Job, settings: Settings) -> None:
        run_id = finish(job)
        experiment = job.client.get_run(run_id).info.experiment_id
        assert len(job.client.search_logged_models([experiment])) == 1
        commands.delete(job.database, settings, EVERYTHING, job.id)
        assert waiting(job.database) == [run_id]
        for _ in range(2):  # the message may come twice
            run_removal.remove(job.database, job.tracker, settings, run_id)
        assert stored_bytes(run_id) == 0
        assert job.client.search_logged_models([experiment]) == []
        run = job.client.get_run(run_id)
        assert (run.info.lifecycle_stage, run.info.status) == ("active", "FINISHED")
        assert run.data.metrics["loss"] > 0
        assert run.data.params
        assert waiting(job.database) == []

    def test_an_outage_of_mlflow_forgets_nothing(self, job: Job, settings: Settings) -> None:
        run_id = finish(job)
        commands.delete(job.database, settings, EVERYTHING, job.id)
        run_removal.remove(job.database, _AWAY, settings, run_id)
        assert stored_bytes(run_id) > _WEIGHTS
        assert waiting(job.database) == []  # for some seconds
        with job.database.write() as session:
            removals.postpone(session, [run_id], -1)
        assert waiting(job.database) == [run_id]
        run_removal.remove(job.database, job.tracker, settings, run_id)
        assert stored_bytes(run_id) == 0

    @pytest.mark.parametrize(
        ("on_delete", "stage", "has_files"),
        [("delete_run", "deleted", False), ("keep", "active", True)],
    )
    def test_the_operator_decides(
        self, job: Job, settings: Settings, on_delete: str, stage: str, has_files: bool
    ) -> None:
        run_id = finish(job)
        commands.delete(job.database, settings, EVERYTHING, job.id)
        wanted = Settings(home=settings.home, mlflow_on_delete=on_delete)
        run_removal.remove(job.database, job.tracker, wanted, run_id)
        assert job.client.get_run(run_id).info.lifecycle_stage == stage
        assert (stored_bytes(run_id) > 0) is has_files
        with job.database.read() as session:
            assert removals.load(session, run_id) is None

    def test_a_registered_version_keeps_its_model(
        self, make: MakeJob, tmp_path: Path, settings: Settings
    ) -> None:
        job = make(tracking={"register_as": f"kept {tmp_path.name}"})
        run_id = finish(job)
        commands.delete(job.database, settings, EVERYTHING, job.id)
        run_removal.remove(job.database, job.tracker, settings, run_id)
        assert stored_bytes(run_id) == _WEIGHTS + 6
        with job.database.read() as session:  # looked at again tomorrow
            assert removals.load(session, run_id) is not None
        assert waiting(job.database) == []

    def test_a_run_that_a_user_has_removed(self, job: Job, settings: Settings) -> None:
        unknown = "0" * 32
        with job.database.write() as session:
            removals.schedule(session, unknown, is_final=True)
        run_removal.remove(job.database, job.tracker, settings, unknown)
        assert waiting(job.database) == []

    def test_files_that_may_still_arrive_are_waited_for(self, job: Job, settings: Settings) -> None:
        run_id = finish(job)
        job.update(tracking_final=False)
        commands.delete(job.database, settings, EVERYTHING, job.id)
        assert waiting(job.database) == []
        with job.database.read() as session:
            assert removals.load(session, run_id) is not None


class TestRetention:
    def _prune(self, job: Job) -> None:
        with job.database.write() as session:
            (ended,) = retention.ended_jobs(session)
            assert retention.prune_workspace(session, ended)

    def test_removes_the_files_and_never_the_run(self, job: Job, settings: Settings) -> None:
        run_id = finish(job)
        self._prune(job)
        wanted = Settings(home=settings.home, mlflow_on_delete="delete_run")
        run_removal.remove(job.database, job.tracker, wanted, run_id)
        assert stored_bytes(run_id) == 0
        assert job.client.get_run(run_id).info.lifecycle_stage == "active"

    def test_a_job_that_was_retried_keeps_its_new_files(self, job: Job, settings: Settings) -> None:
        run_id = finish(job)
        self._prune(job)
        job.update(workspace_pruned_at=None)
        run_removal.remove(job.database, job.tracker, settings, run_id)
        assert stored_bytes(run_id) > _WEIGHTS
        assert waiting(job.database) == []


class TestSearch:
    def test_deleting_it_schedules_its_run(self, database: Database, settings: Settings) -> None:
        spec = SearchSpec.model_validate(search_spec())
        search_id = search_commands.submit(database, DEFAULT_PROJECT, spec).search_id
        search_commands.cancel(database, EVERYTHING, search_id)
        with database.write() as session:
            row = state.lock(session, EVERYTHING, search_id)
            row.mlflow_run_id, row.tracking_final = "a1", True
        search_commands.delete(database, settings, EVERYTHING, search_id)
        assert waiting(database) == ["a1"]
