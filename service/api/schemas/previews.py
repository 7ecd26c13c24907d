"""The answer about a preview."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, Field

from service.api.schemas.rows import model_from_row
from service.contract.failures import Failure
from service.contract.interactive.previews import PreviewFindings, PreviewOptions, PreviewState
from service.store.tables.interactive import PreviewRow


class Preview(BaseModel):
    """What a job with this spec would make of the first rows of its data."""

    object: Literal["preview"] = "preview"
    id: str = Field(examples=["preview-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    state: PreviewState
    rows: int = Field(description="As asked for.")
    shown: int
    created_at: datetime
    ended_at: datetime | None
    expires_at: datetime = Field(description="When it is removed.")
    waiting: str | None = Field(description="Why no worker has begun, where something is known.")
    failure: Failure | None = Field(
        description="How a job would fail with these rows, or why there is no result."
    )
    result: PreviewFindings | None = Field(
        description="null until the preview has ended. With a failure: what was found before it."
    )

    @classmethod
    def from_row(cls, row: PreviewRow, waiting: str | None = None) -> Self:
        options = PreviewOptions.model_validate(row.options)
        return model_from_row(cls, row, rows=options.rows, shown=options.shown, waiting=waiting)
