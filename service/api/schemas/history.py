"""The records of a job: events, metrics, checkpoints, artifacts, its log."""

from datetime import datetime

from pydantic import BaseModel, Field

from service.api.schemas.jobs import Artifact
from service.api.schemas.numbers import Json, Number
from service.api.schemas.rows import model_from_row
from service.contract.stage.events import MetricKind
from service.store.tables.jobs import CheckpointRow, EventRow, MetricRow


class Event(BaseModel):
    seq: int = Field(description="1, 2, 3 … of this job, without gaps.")
    at: datetime
    type: str = Field(examples=["state_changed"])
    epoch: int = Field(description="Number of the claim it belongs to; 0 before the first.")
    data: Json

    @classmethod
    def from_row(cls, row: EventRow) -> "Event":
        return model_from_row(cls, row)


class EventPage(BaseModel):
    data: list[Event]
    has_more: bool


class MetricPoint(BaseModel):
    seq: int
    kind: MetricKind
    step: int
    epoch: Number | None = Field(description="Passes over the data so far.")
    at: datetime
    values: dict[str, Number | None] = Field(
        description="A number, or the string `nan`, `inf` or `-inf`."
    )

    @classmethod
    def from_row(cls, row: MetricRow) -> "MetricPoint":
        return model_from_row(cls, row, epoch=row.progress_epoch)


class MetricPage(BaseModel):
    data: list[MetricPoint]
    has_more: bool


class Checkpoint(BaseModel):
    step: int
    bytes: int
    manifest_sha256: str
    metric: Number | None = Field(description="Value of metric_for_best_model at this step.")
    best: bool
    created_at: datetime
    pruned_at: datetime | None = Field(description="When it was removed to make room.")

    @classmethod
    def from_row(cls, row: CheckpointRow) -> "Checkpoint":
        return model_from_row(cls, row)


class CheckpointFile(BaseModel):
    name: str
    bytes: int
    sha256: str
    url: str = Field(description="Path of the download on this server.")


class CheckpointDetail(Checkpoint):
    last: bool = Field(description="Whether it is the job's latest checkpoint.")
    metrics: Json = Field(description="Results of the evaluation at this step; empty without one.")
    files: list[CheckpointFile] = Field(description="Empty when it was removed to make room.")
    archive_url: str | None = Field(description="All files as one tar archive; null when removed.")


class CheckpointPage(BaseModel):
    data: list[Checkpoint]
    has_more: bool


class ArtifactPage(BaseModel):
    data: list[Artifact]
    has_more: bool


class LogPart(BaseModel):
    """A part of the log. The next one starts at `next_offset`, which is `size` at the end."""

    content: str
    offset: int
    next_offset: int
    size: int = Field(description="Bytes of the log at this moment.")
    eof: bool = Field(description="The job has ended and the log is complete.")
