"""Uploads in parts, in the shapes of the OpenAI uploads API."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from service.api.schemas.files import ExpiresAfter, FileObject, Purpose
from service.api.schemas.rows import model_from_row
from service.contract.fields import patterns
from service.store.files.uploads import MOST_PARTS, State
from service.store.tables.files import FileRow
from service.store.tables.uploads import UploadPartRow, UploadRow


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewUpload(_Body):
    bytes: int = Field(ge=1, le=2**62, description="Of the whole file.")
    filename: str = Field(min_length=1, max_length=255, pattern=patterns.ONE_LINE)
    mime_type: str = Field(
        min_length=1,
        max_length=255,
        pattern=patterns.ONE_LINE,
        description="Not kept: a job recognises the format of a file by its content.",
    )
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


PartId = Annotated[str, StringConstraints(pattern=patterns.PART_ID)]


class UploadCompletion(_Body):
    part_ids: list[PartId] = Field(
        min_length=1, max_length=MOST_PARTS, description="In the order of the file."
    )
    md5: str | None = Field(
        None, pattern=patterns.MD5, description="Of the whole file, in hex; checked if given."
    )


class Upload(BaseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int = Field(description="Of the whole file, as announced.")
    created_at: int = Field(description="Unix seconds.")
    expires_at: int = Field(description="Unix seconds. From then on it takes no part.")
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None = Field(None, description="Of a completed upload.")

    @classmethod
    def from_row(cls, row: UploadRow, file: FileRow | None = None) -> "Upload":
        # A completion in progress is not one of OpenAI's states.
        status = State.PENDING if row.state == State.ASSEMBLING else State(row.state)
        return model_from_row(
            cls,
            row,
            created_at=int(row.created_at.timestamp()),
            expires_at=int(row.expires_at.timestamp()),
            status=status.value,
            file=None if file is None else FileObject.from_row(file),
        )


class UploadPart(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int = Field(description="Unix seconds.")
    upload_id: str

    @classmethod
    def from_row(cls, row: UploadPartRow) -> "UploadPart":
        created_at = int(row.created_at.timestamp())
        return cls(id=row.id, created_at=created_at, upload_id=row.upload_id)
