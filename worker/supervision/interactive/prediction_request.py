"""What the process with a model is given: which files it reads, and how it is confined."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.contract.failures import FailureCode, StageError
from service.contract.interactive.predictions import PredictedModel
from service.contract.spec.spec import JobSpec
from service.contract.stage import home_paths
from service.contract.stage.prediction_events import PredictorRequest, TrainedModel
from service.contract.stage.stages import PrepareResult, StageRequest
from service.contract.states import Stage
from service.errors import SourceJobError
from service.settings import Settings
from service.store.database import Database
from service.store.interactive.prediction_claims import PredictionClaim
from service.store.jobs import lineage
from worker.supervision import stage_views


@dataclass(frozen=True)
class Source:
    """The model of a prediction, as the database knows it now."""

    project_id: str
    spec: JobSpec
    identity: tuple[str, ...]
    """The same for the same weights, and for one project only."""
    prepared: PrepareResult | None
    trained: TrainedModel | None
    workspace: Path | None

    @property
    def bytes(self) -> int | None:
        """Of its weights on the disk, a base model's included; None for one of the Hub."""
        if self.trained is not None:
            folders = [self.trained.folder, *([self.trained.base] if self.trained.base else [])]
        elif (self.spec.model.name_or_path or "").startswith("/"):
            folders = [Path(str(self.spec.model.name_or_path))]
        else:
            return None
        return sum(
            file.stat().st_size
            for folder in folders
            for file in folder.glob("*.safetensors")
            if file.is_file()
        )


def resolve(database: Database, settings: Settings, claimed: PredictionClaim) -> Source:
    """Raises StageError(model_not_found)."""
    model = claimed.request.model
    if model.job is None:
        return _base_model(claimed.project_id, model)
    try:
        with database.read() as session:
            found = lineage.predicted_model(session, claimed.scope, model.job, model.step)
            spec, results = dict(found.job.spec), dict(found.job.results)
    except SourceJobError as error:
        raise StageError(FailureCode.MODEL_NOT_FOUND, error.detail) from error
    workspace = settings.workspace(model.job)
    prepared = PrepareResult.of_results(results, settings.home)
    assert prepared is not None, "it was trained"
    folder = workspace / found.path
    accepted = JobSpec.accepted(spec)
    is_adapter = accepted.peft is not None and (model.step is not None or not accepted.peft.merges)
    finished = results.get(Stage.TRAIN)
    places = [folder.parents[1] / stage_views.CHECKPOINT_SETTINGS]
    if finished is not None and finished["output_dir"]:
        places.append(workspace / finished["output_dir"])
    trained = TrainedModel(
        spec=spec,
        folder=folder,
        settings=places if found.step is not None else [],
        base=_base_of_adapter(prepared, settings) if is_adapter else None,
    )
    identity = (claimed.project_id, model.job, found.path, found.sha256)
    return Source(claimed.project_id, accepted, identity, prepared, trained, workspace)


def _base_of_adapter(prepared: PrepareResult, settings: Settings) -> Path:
    """Raises StageError(model_not_found)."""
    if home_paths.is_there(prepared.model_dir, settings.home, settings.model_roots):
        return prepared.model_dir
    raise StageError(
        FailureCode.MODEL_NOT_FOUND,
        "The adapter's base model was removed from the cache",
        action="Train the job again, or merge the adapter (`peft.merge: true`).",
    )


def _base_model(project_id: str, model: PredictedModel) -> Source:
    body: dict[str, Any] = {
        "mode": "predict",
        "task": {"type": "chat"},
        "model": {"name_or_path": model.name_or_path, "revision": model.revision},
        "dataset": {"source": "path", "format": "jsonl", "test": ["/none.jsonl"]},
    }
    identity = (project_id, str(model.name_or_path), model.revision or "")
    return Source(project_id, JobSpec.accepted(body), identity, None, None, None)


def build(settings: Settings, source: Source, private: Path, gpus: list[str]) -> PredictorRequest:
    """`private`: a folder of the process's own. `gpus`: UUIDs; none: the CPU."""
    spec = source.spec
    stage = StageRequest(
        job_id="job-0" if source.workspace is None else source.workspace.name,
        project_id=source.project_id,
        stage=Stage.PREPARE if source.trained is None else Stage.TRAIN,
        epoch=1,
        attempt=1,
        spec=spec,
        workspace=source.workspace or private,
        attempt_dir=private,
        cache_dir=settings.cache_dir,
        model_roots=settings.model_roots,
        prepared=source.prepared,
        hub_endpoint=settings.hub_endpoint,
        gpus=gpus,
    )
    return PredictorRequest(stage=stage, trained=source.trained, use_gpu=bool(gpus))


def shown(request: PredictorRequest) -> Iterator[Path]:
    """The files of the model."""
    stage, trained = request.stage, request.trained
    if trained is None:
        if (stage.spec.model.name_or_path or "").startswith("/"):
            yield from stage.model_roots
        return
    yield trained.folder
    yield from trained.settings
    if trained.base is not None:
        yield from stage_views.with_links(trained.base, stage)
