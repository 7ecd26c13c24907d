"""A job as its user sees it: the line of a list, and the whole page."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from service.api.schemas.numbers import Json, Number, StoredSpec
from service.api.schemas.problems import Fault
from service.api.schemas.rows import Page, model_from_row
from service.api.schemas.waiting import Waiting
from service.contract.failures import Failure
from service.contract.states import ACTIONS, STAGE_ORDER, Action, JobState, Phase, Stage
from service.settings import Settings
from service.store.tables.jobs import AttemptRow, JobRow
from service.store.tables.searches import SearchRow


class Progress(BaseModel):
    """How far the running stage is."""

    step: int = Field(description="Optimizer steps (train) or items (other stages) done.")
    of: int = Field(description="How many there will be.")
    percent: float | None = Field(description="0 to 100, one decimal; null when `of` is 0.")
    epoch: Number | None = None
    loss: Number | None = None
    examples_per_second: Number | None = None
    eta_seconds: Number | None = None

    @classmethod
    def of_row(cls, stored: dict[str, Any] | None) -> "Progress | None":
        if not stored:
            return None
        step, of = stored["step"], stored["of"]
        rest = {name: stored.get(name) for name in cls.model_fields if name not in {"percent"}}
        return cls(percent=round(100 * min(step, of) / of, 1) if of else None, **rest)


class StageTimes(BaseModel):
    """One stage, over all its attempts."""

    stage: Stage
    attempts: int
    started_at: datetime | None = Field(description="Start of the first attempt.")
    ended_at: datetime | None = Field(description="End of the last attempt; null while it runs.")
    outcome: str | None = Field(
        description="Of the last attempt: `finished`, `failed`, `cancelled`, `lost`, `released`; "
        "null while it runs or when there is none."
    )
    running_seconds: float = Field(description="Of the attempts that have ended, together.")

    @classmethod
    def from_attempts(cls, stage: Stage, attempts: Sequence[AttemptRow]) -> "StageTimes":
        mine = [attempt for attempt in attempts if attempt.stage == stage]
        return cls(
            stage=stage,
            attempts=len(mine),
            started_at=mine[0].started_at if mine else None,
            ended_at=mine[-1].ended_at if mine else None,
            outcome=mine[-1].outcome if mine else None,
            running_seconds=sum(
                (attempt.ended_at - attempt.started_at).total_seconds()
                for attempt in mine
                if attempt.ended_at is not None
            ),
        )


class Artifact(BaseModel):
    name: str = Field(description="Path in GET /v1/jobs/{id}/artifacts/{path}.")
    bytes: int
    sha256: str
    created_at: datetime
    url: str = Field(description="Path of the download on this server.")


class JobResult(BaseModel):
    """The job's results so far; each stage adds its own."""

    metrics: Json = Field(description="Final evaluation and a summary of training.")
    baseline: Json = Field(description="The same metrics before the first step.")
    model_path: str | None = Field(
        description="Folder of the finished model on the worker; null when it was removed."
    )
    weights_sha256: str | None
    steps: int | None
    epochs: Number | None
    best_step: int | None = Field(
        description="With `load_best_model_at_end` the step of the finished model, otherwise that "
        "of the best evaluation."
    )
    best_metric: Number | None = Field(
        description="The value of `metric_for_best_model` at `best_step`."
    )
    metric_for_best_model: str | None
    model_step: int | None = Field(
        description="Step whose weights the finished model has; null for a job that did not train."
    )
    samples: list[Json] = Field(description="A few predictions, in the task's own shape.")
    artifacts: list[Artifact]
    model_revision: str | None = Field(description="Commit that the base model was taken from.")
    dataset_revision: str | None
    data_fingerprint: str | None
    splits: Json = Field(description="Split → numbers of examples and features.")
    data_report: Json | None = Field(
        description="How many rows of each split were used, and how long they are in tokens: the "
        "artifact `data_report.json` without the rows that were left out."
    )
    hub_commit: str | None

    @classmethod
    def from_job(
        cls, job: JobRow, artifacts: Sequence[Artifact], settings: Settings
    ) -> "JobResult | None":
        """None before the first stage is done."""
        if not job.results:
            return None
        prepared = job.results.get(Stage.PREPARE, {})
        trained = job.results.get(Stage.TRAIN, {})
        published = job.results.get(Stage.PUBLISH, {})
        output, kept = trained.get("output_dir"), job.workspace_pruned_at is None
        return cls(
            metrics=trained.get("metrics", {}),
            baseline=trained.get("baseline", {}),
            model_path=str(settings.workspace(job.id) / output) if output and kept else None,
            weights_sha256=trained.get("weights_sha256"),
            steps=trained.get("steps"),
            epochs=trained.get("epochs"),
            best_step=trained.get("best_step"),
            best_metric=trained.get("best_metric"),
            metric_for_best_model=trained.get("metric_for_best_model"),
            model_step=trained.get("model_step"),
            samples=trained.get("samples", []),
            artifacts=list(artifacts),
            model_revision=prepared.get("model_revision"),
            dataset_revision=prepared.get("dataset_revision"),
            data_fingerprint=prepared.get("data_fingerprint"),
            splits=prepared.get("splits", {}),
            data_report=prepared.get("data_report"),
            hub_commit=published.get("hub_commit"),
        )


class BestMetric(BaseModel):
    """The best evaluation of a training."""

    name: str = Field(examples=["eval_f1"], description="`metric_for_best_model`.")
    value: Number
    step: int | None


class JobSummary(BaseModel):
    """A line of the list."""

    id: str = Field(examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    project: str = Field("default", description="Id of the project that owns it.")
    name: str | None
    task: str
    state: JobState
    stage: Stage
    phase: Phase | None
    progress: Progress | None
    attempt: int = Field(description="Of the present stage; 0 before the first.")
    priority: int
    last_metrics: Json = Field(description="The latest metrics.")
    best_metric: BestMetric | None = Field(
        None, description="Once it is trained, if it has a `metric_for_best_model`."
    )
    failure: Failure | None = Field(description="Why it ended, and what to do about it.")
    waiting: Waiting | None = Field(description="Why it waits; null while it runs or has ended.")
    metadata: dict[str, str]
    search_id: str | None = Field(None, description="The search that made it.")
    trial: int | None = Field(
        None,
        description="Its number in the search; null for the job that trains the search's best "
        "values again.",
    )
    mlflow_url: str | None = Field(description="The run's page.")
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None

    @classmethod
    def from_job(cls, job: JobRow, settings: Settings, **others: Any) -> Self:
        """`others`: fields that the row alone does not have."""
        return model_from_row(
            cls,
            job,
            project=job.project_id,
            progress=Progress.of_row(job.progress),
            attempt=job.stage_attempt,
            metadata=job.metadata_,
            mlflow_url=mlflow_url(job, settings),
            **others,
        )

    @classmethod
    def from_row(
        cls,
        job: JobRow,
        settings: Settings,
        waiting: Waiting | None = None,
        best_metric: dict[str, Any] | None = None,
    ) -> "JobSummary":
        return cls.from_job(job, settings, waiting=waiting, best_metric=best_metric)


class Job(JobSummary):
    """One job in full."""

    queue_position: int | None = Field(description="1: next in its queue; null: not waiting.")
    waits_until: datetime | None = Field(
        description="Queued for a retry, which starts at this time at the earliest."
    )
    worker: str | None = Field(description="The worker that runs it now.")
    actions: list[Action] = Field(description="Actions that are possible in its current state.")
    cloned_from: str | None = Field(description="The job that it was cloned from.")
    follow_up: Json | None = Field(
        description="The action requested after the job had ended, `promote` or `publish`, until "
        "it has succeeded."
    )
    base_job: str | None = Field(
        description="The job whose training it continues (`training.resume_from`), or whose model "
        "it started from (`model.job`)."
    )
    derived_jobs: list[str] = Field(
        description="Jobs that started from its model, the oldest first; at most 100."
    )
    workspace_pruned_at: datetime | None = Field(
        description="When its checkpoints and artifacts were removed to make room; a retry "
        "recreates them."
    )
    stages: list[StageTimes]
    result: JobResult | None
    hub_url: str | None
    spec: StoredSpec = Field(description="The spec with all defaults filled in.")

    @classmethod
    def build(
        cls,
        job: JobRow,
        *,
        queue_position: int | None,
        attempts: Sequence[AttemptRow],
        artifacts: Sequence[Artifact],
        settings: Settings,
        waiting: Waiting | None = None,
        derived: Sequence[str] = (),
    ) -> "Job":
        waits = job.state == JobState.QUEUED and job.not_before > job.queued_at
        return cls.from_job(
            job,
            settings,
            waiting=waiting,
            best_metric=_best_metric(job.results.get(Stage.TRAIN, {})),
            queue_position=queue_position,
            waits_until=job.not_before if waits else None,
            worker=job.worker_id,
            actions=_actions(job),
            base_job=_base_job(job.spec),
            derived_jobs=list(derived),
            stages=[StageTimes.from_attempts(stage, attempts) for stage in STAGE_ORDER],
            result=JobResult.from_job(job, artifacts, settings),
            hub_url=job.results.get(Stage.PUBLISH, {}).get("hub_url"),
        )


def _best_metric(trained: Json) -> BestMetric | None:
    name, value = trained.get("metric_for_best_model"), trained.get("best_metric")
    if name is None or value is None:
        return None
    return BestMetric(name=name, value=value, step=trained.get("best_step"))


def _base_job(spec: Json) -> str | None:
    """Of a stored spec."""
    resumed = spec.get("training", {}).get("resume_from")
    found: str | None = resumed["job"] if resumed else spec["model"].get("job")
    return found


def _actions(job: JobRow) -> list[Action]:
    """The actions that its state allows, if the files that they need still exist."""
    kept = job.workspace_pruned_at is None
    possible = {
        Action.PROMOTE: kept and Stage.PREPARE in job.results,
        Action.PUBLISH: kept and bool(job.results.get(Stage.TRAIN, {}).get("output_dir")),
    }
    return [action for action in ACTIONS[JobState(job.state)] if possible.get(action, True)]


def mlflow_url(row: JobRow | SearchRow, settings: Settings) -> str | None:
    """The page of its run, where it has one."""
    base, experiment = settings.mlflow_users_url, row.mlflow_experiment_id
    if base is None or row.mlflow_run_id is None or experiment is None:
        return None
    # Without the type MLflow opens a page for traces of language models.
    return (
        f"{base}/#/experiments/{experiment}/runs/{row.mlflow_run_id}?workflowType=machine_learning"
    )


class JobList(Page):
    """Newest first. The next page: `after` = `last_id`, while `has_more`."""

    data: list[JobSummary]
    first_id: str | None
    last_id: str | None
    has_more: bool


class JobDeleted(BaseModel):
    id: str
    deleted: Literal[True] = True


class IgnoredOption(BaseModel):
    """An option of TrainingArguments that is at its default and has no effect here."""

    path: str = Field(description="Where, for example `training.logging_dir`.")
    given: Any = Field(None, description="The value that was given, shortened; secrets are hidden.")
    reason: str = Field(description="Why the option does not exist, and what to use instead.")


_IGNORED: Any = Field(
    default_factory=list,
    description="Options of `training` that were given at their defaults and do nothing here, as "
    "in a pasted `TrainingArguments.to_dict()`.",
    examples=[
        [
            {
                "path": "training.save_safetensors",
                "given": True,
                "reason": "it is at its default; weights are always saved as safetensors",
            }
        ]
    ],
)


class SpecWarning(BaseModel):
    """A valid field that will probably not do what its author expects."""

    path: str = Field(description="The field, for example `resources.gpus`.")
    code: str = Field(description="`no_such_worker`, `steps_not_reached` …")
    message: str = Field(description="What to expect and what to do, for a person.")


_WARNINGS: Any = Field(
    default_factory=list,
    description="What is valid but will probably not do what is expected. Each is also a `notice` "
    "event of the new job.",
    examples=[
        [
            {
                "path": "resources.gpus",
                "code": "no_such_worker",
                "message": "no live worker has a GPU: the job waits until one with 1 GPU starts",
            }
        ]
    ],
)


class SubmittedJob(Job):
    """A new job's page, the options that were ignored, and warnings."""

    ignored: list[IgnoredOption] = _IGNORED
    warnings: list[SpecWarning] = _WARNINGS


class Validation(BaseModel):
    """What POST /v1/jobs would do with the same body."""

    valid: bool
    spec: StoredSpec | None = Field(description="If valid: the spec with all defaults filled in.")
    errors: list[Fault] = Field(description="If not valid: every fault.")
    ignored: list[IgnoredOption] = _IGNORED
    warnings: list[SpecWarning] = _WARNINGS
