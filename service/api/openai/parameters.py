"""What the requests for text have in common: parameters of OpenAI's API, checked one by one.

A parameter that would change nothing about the answer is accepted; any other that this service does
not have is refused by its name.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError

from service.api.faults.redaction import shown
from service.api.http.request_faults import faults_of
from service.api.problems.errors import InvalidRequestError
from service.api.schemas.problems import Fault
from service.contract.fields import patterns
from service.contract.interactive.predictions import (
    MOST_BYTES,
    MOST_CHOICES,
    MOST_NEW_TOKENS,
    MOST_STOPS,
)

_SEED: Final = 2**63
LongText = Annotated[str, StringConstraints(max_length=MOST_BYTES)]
ShortText = Annotated[str, StringConstraints(max_length=512, pattern=patterns.NO_NUL)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Number = Annotated[int, Field(ge=1, le=MOST_CHOICES)]
Tokens = Annotated[int, Field(ge=1, le=MOST_NEW_TOKENS)]


class Part(BaseModel):
    """Of a request. As in OpenAI's API, null means the same as leaving a parameter out."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Part):
    include_usage: bool | None = Field(
        None, description="A last chunk without choices has the usage of all."
    )
    include_obfuscation: bool | None = Field(
        None, description="Accepted: no chunk is padded with random characters."
    )


class TextRequest(Part):
    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Parameters that OpenAI's API has and this one has not → why, and what to do."""

    model: Annotated[
        str, StringConstraints(min_length=1, max_length=512, pattern=patterns.NO_NUL)
    ] = Field(
        description="A fine-tuned model or a checkpoint (`ft:…`), the id of a job, or a base "
        "model: a Hub id, or an absolute path under the operator's FINETUNE_MODEL_ROOTS.",
        examples=["ft:smollm2:default:rivers:job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
    )
    temperature: Temperature | None = Field(None, description="0: the likeliest token each time.")
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Not in OpenAI's API: sample from this many of the likeliest tokens."
    )
    n: Number | None = Field(None, description="How many answers.")
    seed: Annotated[int, Field(ge=-_SEED, lt=_SEED)] | None = Field(
        None, description="The same seed on the same machine gives the same text."
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_tokens: Tokens | None = None
    stream: bool | None = Field(None, description="Server-sent events, ended by `data: [DONE]`.")
    stream_options: StreamOptions | None = None
    user: ShortText | None = Field(None, description="Accepted; changes nothing.")

    def faults(self) -> Iterator[Fault]:
        """What is wrong with parameters that are each valid."""
        if self.stream_options is not None and not self.stream:
            yield conflict("stream_options", "is only allowed with `stream: true`")

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def sampling(self) -> dict[str, Any]:
        """Those of `GenerationOptions` that were given."""
        names = ("temperature", "top_p", "top_k", "n", "seed")
        given = {name: getattr(self, name) for name in (*names, *_PENALTIES)}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Raises InvalidRequestError with every fault."""
        if not isinstance(body, dict):
            raise InvalidRequestError(
                [Fault(path="", code="invalid_type", message="the body must be an object")]
            )
        refused = [
            unsupported(name, body[name], why)
            for name, why in cls.REFUSED.items()
            if body.get(name)
            not in (None, [], {})  # what a client has not set may be sent as empty
        ]
        try:
            request = cls.model_validate({k: v for k, v in body.items() if k not in cls.REFUSED})
        except ValidationError as error:
            raise InvalidRequestError([*refused, *faults_of(cls, error)]) from None
        if faults := [*refused, *request.faults()]:
            raise InvalidRequestError(faults)
        return request


_PENALTIES: Final = ("presence_penalty", "frequency_penalty")
JsonObject = Annotated[dict[str, JsonValue], Field(max_length=1000)]


def conflict(path: str, message: str) -> Fault:
    return Fault(path=path, code="conflict", message=message)


def unsupported(path: str, value: Any, why: str) -> Fault:
    return Fault(path=path, code="unsupported_option", message=why, given=shown(path, value))
