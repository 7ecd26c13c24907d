"""Answers of models: chat completions and completions, whole and in chunks.

Each has every field of the types of OpenAI's client; null if this service has no value for it.
"""

from typing import Literal

from pydantic import BaseModel, Field

Finish = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class CompletionTokensDetails(BaseModel):
    accepted_prediction_tokens: int | None = None
    audio_tokens: int | None = None
    reasoning_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    text_tokens: int | None = None


class PromptTokensDetails(BaseModel):
    audio_tokens: int | None = None
    cache_write_tokens: int | None = None
    cached_tokens: int | None = None
    image_tokens: int | None = None
    text_tokens: int | None = None


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = Field(description="Of all choices.")
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


# ---- chat ---------------------------------------------------------------------------------------


class TopLogprob(BaseModel):
    token: str
    bytes: list[int] | None
    logprob: float


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatLogprob] | None
    refusal: None = None


class CalledFunction(BaseModel):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it: check it.")


class ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolCallDelta(ToolCall):
    index: int


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    finish_reason: Finish
    logprobs: ChatLogprobs | None = None


class ChatCompletion(BaseModel):
    id: str = Field(examples=["chatcmpl-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage | None
    metadata: dict[str, str] | None = None
    moderation: None = None
    service_tier: None = None
    system_fingerprint: None = None


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    finish_reason: Finish | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    moderation: None = None
    obfuscation: None = None
    service_tier: None = None
    system_fingerprint: None = None


# ---- text ---------------------------------------------------------------------------------------


class TextLogprobs(BaseModel):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length", "content_filter"] | None
    """null in chunks before the last one."""
    logprobs: TextLogprobs | None = None


class Completion(BaseModel):
    """Whole, or a chunk: both have the same form."""

    id: str = Field(examples=["cmpl-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None
    system_fingerprint: None = None
