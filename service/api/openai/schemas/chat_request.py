"""The body of POST /v1/chat/completions, and the prediction that it asks for."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from service.api.openai.parameters import (
    JsonObject,
    LongText,
    Part,
    ShortText,
    TextRequest,
    Tokens,
    conflict,
    unsupported,
)
from service.api.schemas.problems import Fault
from service.contract.interactive.predictions import MOST_LOGPROBS, ChatInput, GenerationOptions

_TEXT_ONLY: Final = "this service answers with text alone: leave it out"
_TOOLS_INSTEAD: Final = "give `tools` instead, which replaced it"
_NO_REASONING: Final = (
    "models here have no such setting: what the model's chat template reads goes into "
    "`chat_template_kwargs`, for example `enable_thinking`"
)
_Null = Literal[None]


class TextPart(Part):
    type: Literal["text"]
    text: LongText


class GivenFunction(Part):
    name: str = Field(min_length=1, max_length=256)
    arguments: LongText | JsonObject = Field(description="An object, or its JSON text.")


class GivenToolCall(Part):
    id: ShortText | None = None
    type: Literal["function"] | None = None
    function: GivenFunction


class Message(Part):
    """A turn. An earlier answer may be sent back unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: LongText | Annotated[list[TextPart], Field(min_length=1, max_length=1000)] | None = (
        None
    )
    name: ShortText | None = None
    tool_calls: Annotated[list[GivenToolCall], Field(max_length=128)] | None = None
    tool_call_id: ShortText | None = None
    reasoning_content: LongText | None = None
    refusal: _Null = None
    audio: _Null = None
    function_call: _Null = None
    annotations: Annotated[list[JsonObject], Field(max_length=0)] | None = None

    def given(self) -> dict[str, Any]:
        """Without nulls, as chat templates read it."""
        empty = {name for name in ("annotations", "tool_calls") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude_none=True, exclude=empty)


class DeclaredFunction(Part):
    name: str = Field(min_length=1, max_length=256)
    description: LongText | None = None
    parameters: JsonObject | None = None
    strict: bool | None = Field(
        None, description="true is refused: nothing makes a model keep to the schema."
    )


class Tool(Part):
    type: Literal["function"]
    function: DeclaredFunction


class ChatCompletionRequest(TextRequest):
    REFUSED: ClassVar[Mapping[str, str]] = {
        "audio": _TEXT_ONLY,
        "function_call": "give `tool_choice` instead, which replaced it",
        "functions": _TOOLS_INSTEAD,
        "logit_bias": "not supported: leave it out",
        "moderation": "there is no moderation here: leave it out",
        "prediction": "predicted outputs are not supported: leave it out",
        "reasoning_effort": _NO_REASONING,
        "verbosity": _NO_REASONING,
        "web_search_options": "models here do not search the web: leave it out",
    }

    messages: list[Message] = Field(
        min_length=1, max_length=10_000, examples=[[{"role": "user", "content": "Hello!"}]]
    )
    max_completion_tokens: Tokens | None = Field(
        None, description="Default: as many as the model has room for, at most 2,048."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = Field(
        None, description="Shown to the model as its chat template does it."
    )
    tool_choice: ShortText | JsonObject | None = Field(
        None, description="`auto` or `none`; the model cannot be made to call a tool."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="Only true: the model decides how many tools it calls."
    )
    response_format: JsonObject | None = Field(None, description="Only `{type: text}`.")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    chat_template_kwargs: JsonObject | None = Field(
        None, description="Not in OpenAI's API: what the model's chat template is given as well."
    )
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=16)] | None = Field(
        None, description="Comes back with the answer; nothing keeps it."
    )
    store: Literal[False] | None = Field(None, description="Answers are not kept.")
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: ShortText | None = Field(None, description="Accepted; changes nothing.")
    prompt_cache_options: JsonObject | None = Field(None, description="Accepted; changes nothing.")
    prompt_cache_retention: ShortText | None = Field(None, description="Accepted; changes nothing.")
    safety_identifier: ShortText | None = Field(None, description="Accepted; changes nothing.")

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        yield from self._choice_faults()
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            yield conflict("max_tokens", "is the older name of `max_completion_tokens`: give one")
        if self.top_logprobs is not None and not self.logprobs:
            yield conflict("top_logprobs", "is only allowed with `logprobs: true`")
        wanted = (self.response_format or {"type": "text"}).get("type")
        if wanted != "text":
            yield unsupported(
                "response_format",
                wanted,
                "nothing makes a model keep to a format here: ask for it in the messages, and "
                "check the answer",
            )

    def _choice_faults(self) -> Iterator[Fault]:
        if self.tool_choice not in (None, "auto", "none"):
            why = "only `auto` and `none` are supported: the model cannot be made to call a tool"
            yield unsupported("tool_choice", self.tool_choice, why)
        if self.parallel_tool_calls is False:
            why = "only true is supported: the model decides how many tools it calls"
            yield unsupported("parallel_tool_calls", value=False, why=why)
        for number, tool in enumerate(self.tools or ()):
            if tool.function.strict:
                why = "only false is supported: nothing makes a model keep to the schema"
                yield unsupported(f"tools[{number}].function.strict", value=True, why=why)

    def input(self) -> ChatInput:
        tools = [tool.model_dump(mode="json", exclude_none=True) for tool in self.tools or ()]
        return ChatInput(
            messages=[message.given() for message in self.messages],
            tools=tools if tools and self.tool_choice != "none" else None,
            chat_template_kwargs=self.chat_template_kwargs or {},
        )

    def options(self) -> GenerationOptions:
        return GenerationOptions(
            **self.sampling,
            max_new_tokens=self.max_completion_tokens or self.max_tokens,
            stop=self.stops,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )
