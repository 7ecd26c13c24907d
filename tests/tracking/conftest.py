"""A job in SQL, and a client that reads MLflow."""

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from service.contract.events import Metric
from service.contract.stages import PrepareResult
from service.store import history, jobs
from service.store.claims import Claim
from service.store.database import Database
from service.store.models import JobRow
from tests.support import mlflow_server
from tests.support.factories import claim_job, make_job
from worker.tracking.trackers import MlflowTracker


@pytest.fixture(scope="session")
def mlflow_uri() -> str:
    """Of a server that allows what the service needs, and no more."""
    return mlflow_server.shared_guarded_uri()


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", mlflow_server.TOKEN)


@pytest.fixture
def tracker(mlflow_uri: str) -> MlflowTracker:
    return MlflowTracker(mlflow_uri)


@pytest.fixture
def client(mlflow_uri: str) -> MlflowClient:
    return MlflowClient(mlflow_uri)


class Job:
    """A claimed job, and shortcuts to change it."""

    def __init__(self, database: Database, workspace: Path, **spec: object) -> None:
        self.database = database
        self.workspace = workspace
        tracking = {"experiment_name": f"tests-{workspace.name}"} | dict(spec.pop("tracking", {}))  # type: ignore[call-overload]
        self.experiment = tracking["experiment_name"]
        self.id = make_job(database, tracking=tracking, **spec)
        self.claim: Claim = claim_job(database, self.id)

    def metric(self, kind: str, step: int, epoch: float | None = None, **values: float) -> None:
        event = Metric(kind=kind, step=step, epoch=epoch, values=values)
        with self.database.write() as session:
            assert history.record(session, self.id, self.claim.epoch, [event]) is not None

    @property
    def row(self) -> JobRow:
        with self.database.read() as session:
            row = session.get(JobRow, self.id)
        assert row is not None
        return row

    def update(self, **values: object) -> None:
        with self.database.write() as session:
            row = session.get(JobRow, self.id)
            assert row is not None
            for name, value in values.items():
                setattr(row, name, value)

    def end(self, state: str, **values: object) -> None:
        with self.database.write() as session:
            now = jobs.clock(session)
        self.update(state=state, ended_at=now, lease_until=None, worker_id=None, **values)

    def runs(self, client: MlflowClient) -> list[Run]:
        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return []
        filter_ = f"tags.`finetune.job_id` = '{self.id}'"
        return list(client.search_runs([experiment.experiment_id], filter_))

    def the_run(self, client: MlflowClient) -> Run:
        (run,) = self.runs(client)
        return run


PREPARED = PrepareResult(
    prepared_dir=Path("prepared"),
    model_dir=Path("model"),
    tokenizer_dir=Path("model"),
    model_revision="a" * 40,
    dataset_revision="b" * 40,
    data_fingerprint="c" * 64,
    splits={"train": {"examples": 90, "features": 113}},
)


@pytest.fixture
def job(database: Database, tmp_path: Path) -> Job:
    return Job(database, tmp_path)
