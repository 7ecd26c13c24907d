"""What a stage reports while it runs: one JSON object per line on the pipe to its supervisor."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.contract.failures import Failure
from service.contract.states import Phase

MetricKind = Literal["train", "eval", "system"]


class _Event(BaseModel):
    # NaN and inf must survive the pipe: they show that the loss has diverged.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class PhaseChanged(_Event):
    type: Literal["phase"] = "phase"
    phase: Phase


class Progress(_Event):
    """The stage's progress. Replaces the previous one; kept in the job's row, not in its
    history."""

    type: Literal["progress"] = "progress"
    step: int = Field(ge=0, description="Optimizer steps (train) or items (other stages) done.")
    of: int = Field(ge=0, description="How many there will be.")
    epoch: float | None = None
    loss: float | None = None
    examples_per_second: float | None = None
    eta_seconds: float | None = None


class Metric(_Event):
    """Numbers at a step. One row per (job, kind, step); sent again after a resume, kept once."""

    type: Literal["metric"] = "metric"
    kind: MetricKind
    step: int = Field(ge=0)
    epoch: float | None = None
    values: dict[str, float]
    is_remade: bool = Field(
        default=False,
        description="The training was rolled back past this step: these numbers replace earlier "
        "ones.",
    )


class CheckpointSaved(_Event):
    """A checkpoint is complete on disk: manifest written, fsynced, renamed into place."""

    type: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str = Field(description="Relative to the job's workspace.")
    bytes: int
    manifest_sha256: str
    metric: float | None = Field(None, description="Value of metric_for_best_model, if evaluated.")
    best: bool = False


class ReferenceSaved(_Event):
    """A part of the reference's values is complete on disk; the next attempt will not compute it
    again."""

    type: Literal["reference_saved"] = "reference_saved"
    features: int = Field(ge=0, description="Of all parts on disk together.")


class Notice(_Event):
    """Something the user should know, for example what `auto` resolved to or rows left out."""

    type: Literal["notice"] = "notice"
    message: str
    data: dict[str, Any] = Field(default_factory=dict)


class ArtifactWritten(_Event):
    """A file that the user may download."""

    type: Literal["artifact"] = "artifact"
    name: str = Field(description="Path that the user sees, for example `predictions.json`.")
    path: str = Field(description="Where it is, relative to the job's workspace.")
    bytes: int
    sha256: str


class ReadyToCommit(_Event):
    """All files of a push are uploaded; it waits for permission to commit them."""

    type: Literal["ready_to_commit"] = "ready_to_commit"


class Finished(_Event):
    """The stage is done; `result` is its PrepareResult, TrainResult or PublishResult as JSON."""

    type: Literal["finished"] = "finished"
    result: dict[str, Any]


class Failed(_Event):
    type: Literal["failed"] = "failed"
    failure: Failure


StageEvent = Annotated[
    PhaseChanged
    | Progress
    | Metric
    | CheckpointSaved
    | ReferenceSaved
    | Notice
    | ArtifactWritten
    | ReadyToCommit
    | Finished
    | Failed,
    Field(discriminator="type"),
]
STAGE_EVENT: TypeAdapter[StageEvent] = TypeAdapter(StageEvent)
