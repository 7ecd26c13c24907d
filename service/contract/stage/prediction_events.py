"""What the supervisor of predictions and the process with the model send each other: one JSON
document on a line of its own."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.contract.failures import Failure
from service.contract.interactive.predictions import MOST_CHOICES, PredictionResult
from service.contract.stage.stages import StageRequest


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class TrainedModel(_Line):
    """What a job has trained: its finished model, or one of its checkpoints."""

    spec: dict[str, Any] = Field(description="Of the job.")
    folder: Path = Field(description="The finished model, or the checkpoint.")
    settings: list[Path] = Field(
        description="Of a checkpoint: folders that may have the rest of the model; the first that "
        "does is used. Empty: `folder` is whole."
    )
    base: Path | None = Field(description="The base model, which an adapter needs.")


class PredictorRequest(_Line):
    """The file that the process is started with."""

    stage: StageRequest = Field(description="What a job with such a model would be given.")
    trained: TrainedModel | None = Field(description="None: the base model of `stage.spec`.")
    use_gpu: bool


# ---- to the process -----------------------------------------------------------------------------


class Ask(_Line):
    type: Literal["ask"] = "ask"
    id: str
    file: Path = Field(description="With the `PredictionRequest`; the process removes nothing.")


class Stop(_Line):
    """No client waits for this answer any more."""

    type: Literal["stop"] = "stop"
    id: str


Order = Annotated[Ask | Stop, Field(discriminator="type")]
ORDER: Final[TypeAdapter[Order]] = TypeAdapter(Order)


# ---- from the process ---------------------------------------------------------------------------


class Written(_Line):
    """How far the texts of the answer are."""

    type: Literal["written"] = "written"
    id: str
    texts: list[str] = Field(max_length=MOST_CHOICES)


class Answered(_Line):
    type: Literal["answered"] = "answered"
    id: str
    result: PredictionResult


class Refused(_Line):
    """There is no answer; also to what was stopped."""

    type: Literal["refused"] = "refused"
    id: str
    failure: Failure


PredictorEvent = Annotated[Written | Answered | Refused, Field(discriminator="type")]
PREDICTOR_EVENT: Final[TypeAdapter[PredictorEvent]] = TypeAdapter(PredictorEvent)
