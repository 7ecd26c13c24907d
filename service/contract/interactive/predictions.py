"""A prediction: what a model of a job, or a base model, answers to a few inputs."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.contract.fields.types import CheckpointChoice, JobId, Text

MOST_BYTES: Final = 1024**2
"""Of a request and of a result, as JSON."""
DEADLINE_SECONDS: Final = 300.0
"""After that a prediction that has not ended has failed."""
MOST_ROWS: Final = 100
MOST_CHOICES: Final = 8
MOST_STOPS: Final = 16
MOST_LOGPROBS: Final = 20
MOST_NEW_TOKENS: Final = 32_768


class PredictionState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED: Final = frozenset({PredictionState.QUEUED, PredictionState.RUNNING})


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PredictedModel(_Frozen):
    """Of a job: its finished model, or that of a checkpoint. Or a base model by its name."""

    job: JobId | None = None
    step: CheckpointChoice | None = Field(None, description="Of a checkpoint of `job`.")
    name_or_path: Text | None = Field(
        None, description="Hub id, or an absolute path under FINETUNE_MODEL_ROOTS."
    )
    revision: Text | None = None

    @model_validator(mode="after")
    def _is_one_model(self) -> "PredictedModel":
        if (self.job is None) == (self.name_or_path is None):
            raise ValueError("give either `job` or `name_or_path`")
        if self.job is None and self.step is not None:
            raise ValueError("`step` is of a checkpoint of `job`, which is missing")
        if self.job is not None and self.revision is not None:
            raise ValueError("`revision` is of `name_or_path`, not of `job`")
        return self


class ChatInput(_Frozen):
    kind: Literal["chat"] = "chat"
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)
    tools: list[dict[str, Any]] | None = Field(None, max_length=128)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, max_length=100)


class CompletionInput(_Frozen):
    kind: Literal["completion"] = "completion"
    prompt: str


class RowsInput(_Frozen):
    """Rows of the job's task, without labels."""

    kind: Literal["rows"] = "rows"
    rows: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_ROWS)


PredictionInput = Annotated[ChatInput | CompletionInput | RowsInput, Field(discriminator="kind")]


class GenerationOptions(_Frozen):
    """How text is generated; rows are answered with their job's own options."""

    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_NEW_TOKENS,
        description="Default: as many as the model has room for, at most 2,048.",
    )
    temperature: float = Field(1.0, ge=0, le=2, description="0: the likeliest token each time.")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, description="Default: all tokens.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=list, max_length=MOST_STOPS
    )
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MOST_LOGPROBS,
        description="How many of the likeliest tokens are listed with each; None: no logprobs.",
    )


class PredictionRequest(_Frozen):
    model: PredictedModel
    input: PredictionInput
    options: GenerationOptions = GenerationOptions()


class Logprob(_Frozen):
    token: str
    logprob: float
    bytes: list[int] = Field(description="The UTF-8 of `token`.")


class TokenLogprob(Logprob):
    top: list[Logprob] = Field(
        max_length=MOST_LOGPROBS, description="The likeliest tokens in its place."
    )


class Choice(_Frozen):
    text: str = Field(description="Without a stop string, and without what ends a turn.")
    finish_reason: Literal["stop", "length"]
    message: dict[str, Any] | None = Field(
        None,
        description="To `chat`: `role`, `content`, and `tool_calls` if the text calls tools in a "
        "known form.",
    )
    logprobs: list[TokenLogprob] | None = None


class Usage(_Frozen):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0, description="Of all choices.")


class PredictionResult(_Frozen):
    choices: list[Choice] = Field(default_factory=list, max_length=MOST_CHOICES)
    usage: Usage | None = Field(None, description="Of generated text.")
    answers: list[dict[str, Any]] | None = Field(None, description="One for each row, in order.")
    notices: list[str] = Field(default_factory=list, max_length=100)

    def is_small(self) -> bool:
        """Whether it has at most `MOST_BYTES` as JSON."""
        return len(self.model_dump_json().encode()) <= MOST_BYTES
