"""The parameters of fine-tuning on conversations."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from service.contract.fields import patterns, regular_expressions
from service.contract.fields.bounds import MOST_ROWS, MOST_TOKENS
from service.contract.fields.section import rule
from service.contract.fields.types import TaskParametersModel, Text
from service.contract.tasks.seq2seq import GenerationSpec

Packing = Literal["bfd", "off"]
ChatTemplate = Annotated[
    str, StringConstraints(min_length=1, max_length=65536, pattern=patterns.NO_NUL)
]


class GenerateSpec(GenerationSpec):
    """Answers that evaluations generate: the likeliest tokens, unless `do_sample` is true."""

    max_new_tokens: int = Field(
        256, ge=1, le=100_000, description="Tokens that are generated for an answer, at most."
    )
    num_beams: int | None = Field(
        None, ge=1, le=64, description="Of beam search; default: that of the model's config."
    )
    samples: int = Field(
        3, ge=1, le=100, description="Answers that each evaluation shows, spread over the rows."
    )
    max_samples: int | None = Field(
        None,
        ge=1,
        le=MOST_ROWS,
        description="Rows that are answered for `exact_match`, spread over the split; default: all "
        "of them. Without `exact_match` only the shown ones are answered.",
    )
    exact_match: Annotated[Text, AfterValidator(regular_expressions.checked)] | None = Field(
        None,
        description="A regular expression that finds the result in an answer: the first group of "
        "its last match, or the whole match if it has no groups. The metric `exact_match` is the "
        "share of generated answers whose result is that of the row's own answer. For GSM8K: "
        r"`#### (-?[\d.,]+)`.",
    )

    @rule
    def _lengths_fit(self) -> Iterator[str]:
        for name in ("min_length", "min_new_tokens"):
            shortest = getattr(self, name)
            if shortest is not None and shortest > self.max_new_tokens:
                yield f"`{name}` ({shortest}) is above `max_new_tokens` ({self.max_new_tokens})"


class ChatSpec(TaskParametersModel):
    """Teach a model the assistant's part of conversations."""

    type: Literal["chat"] = "chat"
    max_length: int | None = Field(
        None,
        ge=8,
        le=MOST_TOKENS,
        description="Tokens of a conversation; longer ones are cut at their end. Default: what "
        "nearly all training rows need, at most the model's limit; the job says what that is.",
    )
    chat_template: ChatTemplate | None = Field(
        None,
        description="The name of a template of ours (`chatml`, …), or the text of a Jinja "
        "template. Default: the model's own.",
    )
    train_on: Literal["assistant", "last", "all", "completion"] = Field(
        "assistant",
        description="assistant: every turn of the assistant whose `weight` is not 0; last: the "
        "last of them; all: each token; completion: what follows the prompt.",
    )
    packing: Packing = Field(
        "off",
        description="bfd: several conversations in one example of `max_length` tokens, by best-fit "
        "decreasing. None of them sees another, and none is cut for it.",
    )
    generate: GenerateSpec | None = Field(
        None,
        description="Generate answers in evaluations. With `mode: predict`: how answers are "
        "generated.",
    )

    def scores_results(self) -> bool:
        """Whether evaluations report `exact_match`."""
        return self.generate is not None and self.generate.exact_match is not None

    def predicting_variant(self) -> str:
        return "chat/text-generation"
