"""Uploaded files in the shapes of the OpenAI files API, so that its client works."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.schemas.rows import Page, model_from_row
from service.contract.failures import Failure
from service.store.tables.files import FileRow

Purpose = Literal["fine-tune", "evals", "user_data", "assistants", "batch", "vision"]
ListedPurpose = Literal[Purpose, "fine-tune-results", "batch_output", "assistants_output"]
"""OpenAI's lists can be filtered by the purposes of what its service makes, too."""


class ExpiresAfter(BaseModel):
    """When a file is removed by itself."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 86400, description="From one hour to 30 days.")


class FileObject(BaseModel):
    id: str = Field(examples=["file-0199a0b1c2d3e4f5a6b7c8d9"])
    object: Literal["file"] = "file"
    project: str = Field("default", description="Id of the project that owns it.")
    bytes: int = Field(ge=0)
    created_at: int = Field(description="Unix seconds.")
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = None
    expires_at: int | None = Field(None, description="Unix seconds; null: it does not expire.")
    sha256: str = Field(description="Of the content, in hex.")

    @classmethod
    def from_row(cls, row: FileRow) -> "FileObject":
        return model_from_row(
            cls,
            row,
            project=row.project_id,
            created_at=int(row.created_at.timestamp()),
            status="processed",
            status_details=None,
            expires_at=None if row.expires_at is None else int(row.expires_at.timestamp()),
        )


class FileList(Page):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BadRow(BaseModel):
    place: str = Field(examples=["file-0199a0b1c2d3e4f5a6b7c8d9, line 3"])
    reason: str = Field(examples=["answer_not_found"], description="Rows are counted by it.")
    problem: str = Field(description="What is wrong with it, for a person.")
    check: str | None = Field(
        None,
        description="OpenAI's name for the check that the row fails, if it publishes one.",
        examples=["message_unrecognized_key"],
    )


class FileCheck(BaseModel):
    """The faults that a job would find in the rows of a file."""

    object: Literal["file.check"] = "file.check"
    file_id: str
    filename: str
    task: str
    split: str
    format: str | None = Field(None, description="As it was given or recognised.")
    complete: bool = Field(
        default=False,
        description="false: the time was not enough for all rows, or `failure` is set.",
    )
    rows_read: int = 0
    rows_usable: int = 0
    rows_bad: int = 0
    bad_by_reason: dict[str, int] = Field(default_factory=dict)
    bad_rows: list[BadRow] = Field(default_factory=list, description="Up to 100 of them.")
    realigned: int = Field(
        0, description="Question answering: answers found near where `answer_start` says."
    )
    usable_with: list[Literal["fail", "skip"]] = Field(
        default_factory=list,
        description="Values of `dataset.on_bad_row` with which a job could use the rows read.",
    )
    failure: Failure | None = Field(
        None, description="What a job would end with, however it deals with bad rows."
    )


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
