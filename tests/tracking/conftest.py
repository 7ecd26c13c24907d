"""A job in SQL, and a client that reads MLflow."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from service.contract.stage.events import ArtifactWritten, Metric, StageEvent
from service.contract.stage.stages import PrepareResult
from service.store.database import Database, db_now
from service.store.jobs import attempt_reports
from service.store.jobs.claims import Claim
from service.store.tables.jobs import JobRow
from tests.support.factories import claim_job, make_job
from tests.support.servers import mlflow_server
from tests.support.store.job_rows import get, put
from worker.tracking.shipper import BackgroundShipper, sync
from worker.tracking.trackers import MlflowTracker, NullTracker


@pytest.fixture(scope="session")
def mlflow_uri(processes: None) -> str:
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
    """A claimed job, shortcuts to change it, what ships it, and what MLflow has of it."""

    def __init__(
        self, database: Database, tracker: MlflowTracker, workspace: Path, **spec: object
    ) -> None:
        self.database = database
        self.tracker = tracker
        self.client = MlflowClient(tracker._uri)
        self.workspace = workspace
        tracking = {"experiment_name": f"tests-{workspace.name}"} | dict(spec.pop("tracking", {}))  # type: ignore[call-overload]
        self.experiment = tracking["experiment_name"]
        self.id = make_job(database, tracking=tracking, **spec)
        self.claim: Claim = claim_job(database, self.id)

    def metric(self, kind: str, step: int, epoch: float | None = None, **values: float) -> None:
        self.record(Metric(kind=kind, step=step, epoch=epoch, values=values))

    def write_artifact(self, name: str, content: bytes) -> None:
        """A file of the workspace that the run is to have as `name`."""
        path = name.replace("/", "-")
        (self.workspace / path).write_bytes(content)
        self.record(ArtifactWritten(name=name, path=path, bytes=len(content), sha256="0" * 64))

    def record(self, *events: StageEvent) -> None:
        with self.database.write() as session:
            assert attempt_reports.record(session, self.id, self.claim.epoch, events) is not None

    @property
    def row(self) -> JobRow:
        return get(self.database, self.id)

    def update(self, **values: object) -> None:
        put(self.database, self.id, **values)

    def end(self, state: str, **values: object) -> None:
        self.update(state=state, ended_at=db_now(), lease_until=None, worker_id=None, **values)

    def ship(self, tracker: MlflowTracker | NullTracker | None = None) -> bool:
        return sync(self.database, tracker or self.tracker, self.id, self.workspace)

    def ship_in_background(
        self, tracker: MlflowTracker | None = None, **options: float
    ) -> BackgroundShipper:
        given = tracker or self.tracker
        return BackgroundShipper(self.database, given, self.id, self.workspace, **options)

    @property
    def runs(self) -> list[Run]:
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return []
        filter_ = f"tags.`finetune.job_id` = '{self.id}'"
        return list(self.client.search_runs([experiment.experiment_id], filter_))

    @property
    def run(self) -> Run:
        (run,) = self.runs
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


MakeJob = Callable[..., Job]


@pytest.fixture
def make(database: Database, tracker: MlflowTracker, tmp_path: Path) -> MakeJob:
    """Makes a job with this spec, and with its workspace in `folder`."""
    return lambda folder=tmp_path, **spec: Job(database, tracker, folder, **spec)


@pytest.fixture
def job(make: MakeJob) -> Job:
    return make()
