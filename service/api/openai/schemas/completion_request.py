"""The body of POST /v1/completions, and the predictions that it asks for."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final

from pydantic import Field

from service.api.openai.parameters import LongText, Number, TextRequest, conflict, unsupported
from service.api.schemas.problems import Fault
from service.contract.interactive.predictions import (
    MOST_LOGPROBS,
    CompletionInput,
    GenerationOptions,
)

MOST_PROMPTS: Final = 8
_DEFAULT_TOKENS: Final = 16
"""As OpenAI documents it."""


class CompletionRequest(TextRequest):
    REFUSED: ClassVar[Mapping[str, str]] = {
        "logit_bias": "not supported: leave it out",
        "suffix": "models here continue a text and cannot fill a gap: leave it out",
    }

    prompt: LongText | Annotated[list[LongText], Field(min_length=1, max_length=MOST_PROMPTS)] = (
        Field(
            description="A text, or several, each continued by itself.",
            examples=["Once upon a time"],
        )
    )
    best_of: Number | None = Field(None, description="Only as many as `n`.")
    echo: bool | None = Field(None, description="Each text begins with its prompt.")
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = Field(
        None, description="How many of the likeliest tokens are listed with each."
    )

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.best_of not in (None, self.n or 1):
            why = "only as many as `n` are generated: leave it out"
            yield unsupported("best_of", self.best_of, why)
        if self.echo and self.logprobs is not None:
            yield conflict("logprobs", "are not computed for a prompt: leave out `echo`")

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def inputs(self) -> list[CompletionInput]:
        return [CompletionInput(prompt=prompt) for prompt in self.prompts]

    def options(self) -> GenerationOptions:
        return GenerationOptions(
            **self.sampling,
            max_new_tokens=self.max_tokens or _DEFAULT_TOKENS,
            stop=self.stops,
            logprobs=self.logprobs,
        )
