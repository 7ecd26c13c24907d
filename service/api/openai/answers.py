"""The answer of a prediction as objects of OpenAI's API, whole or in chunks."""

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

from pydantic import BaseModel

from service.api.openai.schemas.completions import (
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    Completion,
    CompletionChoice,
    CompletionUsage,
    Finish,
    TextLogprobs,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
)
from service.contract.interactive.predictions import Choice, Logprob, PredictionResult, TokenLogprob
from service.errors import DomainError

CHAT_PREFIX: Final = "chatcmpl-"
TEXT_PREFIX: Final = "cmpl-"


class AnswerChangedError(DomainError):
    status, code, title = 503, "answer_changed", "The answer was interrupted"


class Head(NamedTuple):
    """What an answer and all its chunks have in common."""

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, model: str) -> Self:
        return cls(f"{prefix}{secrets.token_hex(16)}", int(time.time()), model)


def usage(results: Sequence[PredictionResult]) -> CompletionUsage:
    """The tokens of all results together."""
    counts = [result.usage for result in results if result.usage is not None]
    prompt = sum(count.prompt_tokens for count in counts)
    completion = sum(count.completion_tokens for count in counts)
    return CompletionUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


# ---- chat ---------------------------------------------------------------------------------------


def chat_completion(
    head: Head, result: PredictionResult, metadata: dict[str, str] | None
) -> ChatCompletion:
    return ChatCompletion(
        **head._asdict(),
        choices=[_chat_choice(index, each) for index, each in enumerate(result.choices)],
        usage=usage([result]),
        metadata=metadata,
    )


def _chat_choice(index: int, choice: Choice) -> ChatChoice:
    message = _message(choice)
    return ChatChoice(
        index=index,
        message=message,
        finish_reason=_finish(choice, message),
        logprobs=_chat_logprobs(choice.logprobs),
    )


def _finish(choice: Choice, message: ChatMessage) -> Finish:
    calls = message.tool_calls and choice.finish_reason == "stop"
    return "tool_calls" if calls else choice.finish_reason


def _message(choice: Choice) -> ChatMessage:
    """The text alone if the worker has found no calls of tools in it."""
    given = choice.message or {}
    calls = [call for each in given.get("tool_calls") or () if (call := _call(each)) is not None]
    if not calls:
        return ChatMessage(content=choice.text)
    content = given.get("content")
    return ChatMessage(content=content if isinstance(content, str) else None, tool_calls=calls)


def _call(given: Any) -> ToolCall | None:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(
        id=f"call_{secrets.token_hex(12)}",
        function=CalledFunction(name=function["name"], arguments=text),
    )


def _chat_logprobs(logprobs: list[TokenLogprob] | None) -> ChatLogprobs | None:
    if logprobs is None:
        return None
    return ChatLogprobs(
        content=[
            ChatLogprob(**_logprob(each).model_dump(), top_logprobs=[_logprob(t) for t in each.top])
            for each in logprobs
        ]
    )


def _logprob(logprob: Logprob) -> TopLogprob:
    return TopLogprob(token=logprob.token, bytes=logprob.bytes, logprob=logprob.logprob)


# ---- text ---------------------------------------------------------------------------------------


def completion(head: Head, results: Sequence[PredictionResult], echoed: list[str]) -> Completion:
    """The choices of one prompt after those of the other; `echoed`: what each prompt's texts begin
    with."""
    number = len(results[0].choices)
    return Completion(
        **head._asdict(),
        choices=[
            CompletionChoice(
                index=place * number + index,
                text=echoed[place] + choice.text,
                finish_reason=choice.finish_reason,
                logprobs=_text_logprobs(choice.logprobs),
            )
            for place, result in enumerate(results)
            for index, choice in enumerate(result.choices)
        ],
        usage=usage(results),
    )


def _text_logprobs(logprobs: list[TokenLogprob] | None) -> TextLogprobs | None:
    if logprobs is None:
        return None
    offsets, offset = [], 0
    for each in logprobs:
        offsets.append(offset)
        # A token may be a part of a character: what begins one is counted.
        offset += sum(byte & 0xC0 != 0x80 for byte in each.bytes)
    tops = [{top.token: top.logprob for top in each.top} for each in logprobs]
    return TextLogprobs(
        text_offset=offsets,
        token_logprobs=[each.logprob for each in logprobs],
        tokens=[each.token for each in logprobs],
        top_logprobs=tops if any(tops) else None,
    )


# ---- chunks -------------------------------------------------------------------------------------


class _Chunks:
    """Which part of the texts was sent. With `is_whole` they are sent when they are complete: only
    then tool calls and the probability of each token are known."""

    def __init__(self, head: Head, *, is_whole: bool) -> None:
        self.head = head
        self._is_whole = is_whole
        self._sent: dict[int, str] = {}

    def _new(self, index: int, text: str) -> str:
        """The new part of a choice's text. An attempt that replaces a lost one writes the text
        again; it is not sent again."""
        sent = self._sent.get(index, "")
        if self._is_whole or not text.startswith(sent):
            return ""
        self._sent[index] = text
        return text[len(sent) :]

    def _rest(self, index: int, text: str) -> str:
        """What is still to be sent of a text that is complete. Raises AnswerChangedError."""
        sent = self._sent.get(index, "")
        if not text.startswith(sent):
            raise AnswerChangedError(
                "Another worker had to begin again, and its text is a different one. Ask again."
            )
        return text[len(sent) :]


class ChatChunks(_Chunks):
    """The chunks of one chat completion."""

    def begin(self, number: int) -> list[BaseModel]:
        first = ChatDelta(role="assistant", content="")
        return [self._chunk(index, first) for index in range(number)]

    def grown(self, _place: int, texts: Sequence[str]) -> list[BaseModel]:
        """What is new in the texts of all choices."""
        found = [(index, self._new(index, text)) for index, text in enumerate(texts)]
        return [self._chunk(index, ChatDelta(content=new)) for index, new in found if new]

    def ended(self, _place: int, result: PredictionResult) -> list[BaseModel]:
        """The rest of each choice, and why it ended. Raises AnswerChangedError."""
        chunks: list[BaseModel] = []
        for index, choice in enumerate(result.choices):
            message = _message(choice)
            calls = [
                ToolCallDelta(index=number, **call.model_dump())
                for number, call in enumerate(message.tool_calls or ())
            ]
            text = self._rest(index, message.content or "")
            logprobs = _chat_logprobs(choice.logprobs)
            if text or calls or logprobs:
                delta = ChatDelta(content=text or None, tool_calls=calls or None)
                chunks.append(self._chunk(index, delta, logprobs=logprobs))
            chunks.append(self._chunk(index, ChatDelta(), _finish(choice, message)))
        return chunks

    def usage(self, results: Sequence[PredictionResult]) -> BaseModel:
        return ChatCompletionChunk(**self.head._asdict(), choices=[], usage=usage(results))

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        finish: Finish | None = None,
        logprobs: ChatLogprobs | None = None,
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(index=index, delta=delta, finish_reason=finish, logprobs=logprobs)
        return ChatCompletionChunk(**self.head._asdict(), choices=[choice])


class TextChunks(_Chunks):
    """The chunks of one completion of several prompts, each with `number` choices."""

    def __init__(self, head: Head, echoed: list[str], number: int, *, is_whole: bool) -> None:
        super().__init__(head, is_whole=is_whole)
        self._echoed = echoed
        self._number = number

    def begin(self, number: int) -> list[BaseModel]:
        places = enumerate(each for each in self._echoed for _ in range(number))
        return [self._chunk(index, prompt) for index, prompt in places if prompt]

    def grown(self, place: int, texts: Sequence[str]) -> list[BaseModel]:
        found = [(index, self._new(index, text)) for index, text in self._numbered(place, texts)]
        return [self._chunk(index, new) for index, new in found if new]

    def ended(self, place: int, result: PredictionResult) -> list[BaseModel]:
        chunks: list[BaseModel] = []
        for index, choice in self._numbered(place, result.choices):
            chunk = self._chunk(index, self._rest(index, choice.text))
            chunk.choices[0].finish_reason = choice.finish_reason
            chunk.choices[0].logprobs = _text_logprobs(choice.logprobs)
            chunks.append(chunk)
        return chunks

    def usage(self, results: Sequence[PredictionResult]) -> BaseModel:
        return Completion(**self.head._asdict(), choices=[], usage=usage(results))

    def _numbered(self, place: int, each: Sequence[Any]) -> "enumerate[Any]":
        return enumerate(each, place * self._number)

    def _chunk(self, index: int, text: str) -> Completion:
        choice = CompletionChoice(index=index, text=text, finish_reason=None)
        return Completion(**self.head._asdict(), choices=[choice])
