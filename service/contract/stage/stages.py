"""What a stage receives and what it returns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

from service.contract.interactive.previews import PreviewOptions
from service.contract.spec.hub import HubSpec
from service.contract.spec.spec import JobSpec
from service.contract.stage import home_paths, project_cache
from service.contract.stage.home_paths import HomePath
from service.contract.states import Stage

EVENT_FD_VARIABLE: Final = "FINETUNE_EVENT_FD"
"""Environment variable of a stage's process: the descriptor that its events go to."""


class _Frozen(BaseModel):
    # A result may contain NaN, which must reach the next stage as NaN.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class BaseJob(_Frozen):
    """What `model.job` was resolved to: a finished model, or a checkpoint with the folder of the
    rest."""

    job: str
    step: int | None = Field(description="Of the checkpoint; None for the finished model.")
    folder: HomePath = Field(description="The finished model, or the checkpoint.")
    finished: HomePath | None = Field(description="The finished model, if there is one.")
    sha256: str = Field(description="Of the finished model's weights, or of the manifest.")
    name: str = Field(
        description="What a model card calls the base model: an id on the Hub, or an absolute "
        "path; the card shows only its last part."
    )
    revision: str | None = Field(description="Commit on the Hub with exactly these weights.")


class ResumeSource(_Frozen):
    """What `training.resume_from` was resolved to: a checkpoint, and the inputs of its training."""

    job: str
    step: int
    folder: HomePath = Field(
        description="Named by the step. The other job's; from `prepare` on in the job's own folder."
    )
    sha256: str = Field(description="Of the manifest.")
    data_fingerprint: str
    model_revision: str | None


class BaseCard(_Frozen):
    """The parts of the base model's own card that also hold for the finished model."""

    language: list[str] = Field(default_factory=list)
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    tags: list[str] = Field(default_factory=list)


class PrepareResult(_Frozen):
    """Everything `train` needs, resolved and on local disk: it works offline from here."""

    prepared_dir: HomePath = Field(
        description="Content-addressed folder with the tokenised splits."
    )
    model_dir: HomePath = Field(description="Local folder of the base model (config and weights).")
    tokenizer_dir: HomePath
    model_revision: str | None = Field(description="Commit hash; None for a local path.")
    dataset_revision: str | None = Field(description="Commit hash; None for files and paths.")
    data_fingerprint: str = Field(description="sha256 over the rows and the tokenisation settings.")
    splits: dict[str, dict[str, int]] = Field(
        description='Counts, for example {"train": {"examples": 90, "features": 113}}.'
    )
    hub_model_id: str | None = Field(
        None, description="`hub.model_id` with its namespace: where the job may push."
    )
    base_job: BaseJob | None = Field(None, description="What `model.job` was resolved to.")
    resume_source: ResumeSource | None = Field(
        None, description="What `training.resume_from` was resolved to."
    )
    base_card: BaseCard | None = Field(None, description="Of the base model; None without a card.")
    data_report: dict[str, Any] | None = Field(
        None, description="`data_report.json` without the bad rows; None in predictions."
    )
    model_parameters: int | None = Field(
        None, description="Of the base model; None in predictions."
    )
    model_buffer_bytes: int = Field(
        0, description="Of tables of the base model that are computed, not trained."
    )
    model_shapes: list[tuple[int, int]] = Field(
        default_factory=list,
        description="Inputs and outputs of the layers in which the base model multiplies most.",
    )

    @classmethod
    def of_results(cls, results: Mapping[str, Any], home: Path) -> Self | None:
        """From the results of a job's stages, with paths in this home; None before `prepare`."""
        stored = results.get(Stage.PREPARE)
        return cls.model_validate(stored, context=home_paths.Of(home)) if stored else None

    def stored(self, home: Path) -> dict[str, Any]:
        """As JSON for the job's row. ValueError for a path that is not below `home`."""
        return self.model_dump(mode="json", context=home_paths.Of(home))

    def folders(self) -> dict[str, Path]:
        """What `train` reads, under the names in which a missing one is reported."""
        return {
            "prepared_data": self.prepared_dir,
            "base_model": self.model_dir,
            "tokenizer": self.tokenizer_dir,
        }


class TrainResult(_Frozen):
    output_dir: str | None = Field(
        description="The finished model, relative to the workspace; None in jobs that do not train."
    )
    steps: int
    epochs: float
    metrics: dict[str, float] = Field(description="Final evaluation and training summary.")
    baseline: dict[str, float] = Field(description="The same metrics before the first step.")
    best_step: int | None = Field(
        None,
        description="With `load_best_model_at_end` the step of the finished model, otherwise that "
        "of the best evaluation.",
    )
    best_metric: float | None = Field(
        None, description="The value of `metric_for_best_model` at `best_step`."
    )
    metric_for_best_model: str | None = Field(
        None, description="As given, or `loss` where something depends on it."
    )
    model_step: int | None = Field(
        None, description="Whose weights the finished model has; None in jobs that do not train."
    )
    is_promoted: bool = Field(
        default=False, description="The model was chosen by the user after the training."
    )
    weights_sha256: str | None = Field(
        description="sha256 of the model's safetensors, in name order; None as above."
    )
    precision: str = Field(description="What `training.precision` was resolved to.")
    samples: list[dict[str, Any]] = Field(
        default_factory=list, description="A few predictions to show, in the task's own shape."
    )


class PublishResult(_Frozen):
    mlflow_artifact_uri: str | None = None
    hub_url: str | None = None
    hub_commit: str | None = None


class StageRequest(_Frozen):
    """Written to `<attempt_dir>/request.json`, whose path is the stage's only argument.

    A push while training is given one as well, the training's with its checkpoint. Holds no secret:
    `prepare`, `publish` and pushes find the Hub token in HF_TOKEN; `train` has none.
    """

    job_id: str
    project_id: str = Field("default", description="Caches are shared within a project.")
    stage: Stage
    epoch: int
    attempt: int
    spec: JobSpec
    workspace: Path = Field(description="The job's folder.")
    attempt_dir: Path = Field(
        description="`<workspace>/attempts/<epoch>`: the only place this attempt writes results "
        "to, so that a frozen attempt that wakes up late can harm nothing."
    )
    cache_dir: Path = Field(description="Of all projects; a job uses `project_cache`.")
    files: dict[str, Path] = Field(
        default_factory=dict, description="Uploaded file id → where it is."
    )
    file_names: dict[str, str] = Field(
        default_factory=dict,
        description="Uploaded file id → the name that its user gave it: for messages, and because "
        "its suffix says what format the file has.",
    )
    data_roots: list[Path] = Field(default_factory=list)
    model_roots: list[Path] = Field(default_factory=list)
    max_prepared_bytes: int | None = Field(
        None, description="`prepare`: of one split's rows; None: as many as there are."
    )
    base_job: BaseJob | None = Field(
        None, description="`prepare`: what `model.job` is resolved to."
    )
    resume_source: ResumeSource | None = Field(
        None, description="`prepare`: what `training.resume_from` is resolved to."
    )
    preview: PreviewOptions | None = Field(
        None, description="`prepare` of a preview: what is read and shown."
    )
    prepared: PrepareResult | None = None
    trained: TrainResult | None = None
    resume_from: Path | None = Field(None, description="A registered, verified checkpoint.")
    promotes: bool = Field(
        default=False, description="`resume_from` becomes the job's model, without another step."
    )
    checkpoints: list[Path] = Field(
        default_factory=list,
        description="`publish`: those that `hub.strategy` pushes, registered and verified, the "
        "newest first. A push while training: the one that it pushes.",
    )
    left_over: list[Path] = Field(
        default_factory=list,
        description="`publish`: checkpoints whose models are to be on the Hub before the finished "
        "one, each in a commit of its own that may have been made during the training; the oldest "
        "first.",
    )
    mlflow_uri: str | None = None
    mlflow_run_id: str | None = None
    hub_endpoint: str | None = None
    gpus: list[str] = Field(
        default_factory=list,
        description="UUIDs of the GPUs that the worker has given to this attempt; empty: the CPU.",
    )

    @property
    def home(self) -> Path:
        return self.cache_dir.parent

    @property
    def project_cache(self) -> Path:
        return project_cache.folder_of(self.cache_dir, self.project_id)

    @property
    def continues_other_job(self) -> bool:
        """Whether `resume_from` is a checkpoint of the job that `training.resume_from` names."""
        source = self.prepared.resume_source if self.prepared is not None else None
        return source is not None and self.resume_from == source.folder

    @property
    def hub_target(self) -> HubSpec | None:
        """The spec's `hub`, with the full `model_id` from `prepare` on."""
        target = self.spec.hub
        if target is None or self.prepared is None or self.prepared.hub_model_id is None:
            return target
        return target.model_copy(update={"model_id": self.prepared.hub_model_id})
