"""Rows for a model of a job, and the answer about them."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from service.api.schemas.rows import model_from_row
from service.contract.failures import Failure
from service.contract.fields.types import CheckpointChoice
from service.contract.interactive.predictions import (
    MOST_ROWS,
    PredictionRequest,
    PredictionResult,
    PredictionState,
)
from service.store.tables.interactive import PredictionRow

_Row = Annotated[dict[str, JsonValue], Field(max_length=1000)]


class PredictRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rows: Annotated[list[_Row], Field(min_length=1, max_length=MOST_ROWS)] = Field(
        description="With the columns of the job's task, without labels.",
        examples=[[{"question": "Who wrote it?", "context": "Ann wrote it."}]],
    )
    step: CheckpointChoice | None = Field(
        None,
        description="Of a checkpoint: `best`, `last` or a step. Default: the finished model.",
    )


class Prediction(BaseModel):
    """What a model answers to a few inputs."""

    object: Literal["prediction"] = "prediction"
    id: str = Field(examples=["pred-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    job: str | None = Field(description="Whose model it is; null: a base model.")
    step: int | None = Field(description="Of the checkpoint; null: the finished model.")
    state: PredictionState
    created_at: datetime
    ended_at: datetime | None
    expires_at: datetime = Field(description="When it is removed.")
    waiting: str | None = Field(description="Why no worker has begun, where something is known.")
    failure: Failure | None
    answers: list[dict[str, Any]] | None = Field(
        description="One for each row, in order; null until the prediction has succeeded."
    )
    notices: list[str] = Field(description="For example of texts that were cut.")

    @classmethod
    def from_row(cls, row: PredictionRow, waiting: str | None = None) -> Self:
        model = PredictionRequest.model_validate(row.request).model
        result = PredictionResult.model_validate(row.result or {})
        return model_from_row(
            cls,
            row,
            job=model.job,
            step=model.step if isinstance(model.step, int) else None,
            waiting=waiting,
            answers=result.answers,
            notices=result.notices,
        )
