"""Usage, secrets and the audit log, as their readers see them."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, Field

from service.api.schemas.rows import Page, model_from_row
from service.store.projects.usage import Day
from service.store.tables.teams import AuditRow, SecretRow


class JobEnds(BaseModel):
    succeeded: int
    failed: int
    cancelled: int


class UsageDay(BaseModel):
    """What a project has used on a day of UTC."""

    project: str = Field(description="Id of the project.")
    day: str = Field(examples=["2026-01-31"])
    gpu_seconds: float = Field(description="Of all attempts with GPUs: seconds times GPUs.")
    worker_seconds: float = Field(description="Of all attempts without a GPU.")
    attempts: int = Field(description="Attempts that ended on this day.")
    jobs: JobEnds = Field(description="How jobs ended; a job that was retried may end again.")
    bytes_stored: int = Field(description="The most that was stored on this day.")

    @classmethod
    def from_day(cls, day: Day) -> Self:
        used = day.used
        return cls(
            project=day.project,
            day=day.day,
            gpu_seconds=used.gpu_microseconds / 1e6,
            worker_seconds=used.worker_microseconds / 1e6,
            attempts=used.attempts,
            jobs=JobEnds(succeeded=used.succeeded, failed=used.failed, cancelled=used.cancelled),
            bytes_stored=day.bytes_stored,
        )


class UsageList(BaseModel):
    object: Literal["list"] = "list"
    data: list[UsageDay]


class Secret(BaseModel):
    """A secret without its value, which is never shown."""

    name: str
    project: str
    created_at: datetime
    updated_at: datetime

    @classmethod
    def from_row(cls, row: SecretRow) -> Self:
        return model_from_row(cls, row, project=row.project_id)


class SecretList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Secret]


class SecretDeleted(BaseModel):
    name: str
    deleted: Literal[True] = True


class AuditEntry(BaseModel):
    """Who did what to what, when and from where."""

    id: str
    at: datetime
    project: str | None = Field(description="None: not known, or all projects.")
    key_id: str | None
    key_name: str | None = Field(
        description="Of a command on the service's machine: the name of that machine's user."
    )
    role: str | None
    action: str = Field(examples=["create_job"], description="The operation's id in OpenAPI.")
    target: str | None = Field(examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    outcome: Literal["done", "refused"]
    code: str | None = Field(description="Why it was refused.")
    client: str | None = Field(description="The address that the request came from, or `cli`.")
    request_id: str | None

    @classmethod
    def from_row(cls, row: AuditRow) -> Self:
        return model_from_row(cls, row, project=row.project_id)


class AuditList(Page):
    object: Literal["list"] = "list"
    data: list[AuditEntry]
    first_id: str | None
    last_id: str | None
    has_more: bool
