"""Questions to a fine-tuned model: chat and text, whole, streamed and asynchronous."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from tests.openai_clients.scripts.client import exact, refused
from tests.openai_clients.scripts.strict import require_exact

MESSAGES: Any = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what does the report say?"},
]
OPTIONS: Any = {"temperature": 0, "max_tokens": 6}


def check_model(client: openai.OpenAI, model: str) -> None:
    """What temperature 0 answers is the same text in every way of asking for it."""
    asked: Any = {"model": model, "messages": MESSAGES, **OPTIONS}
    whole = exact(client.chat.completions, "create", **asked)
    message = whole.choices[0].message
    assert (whole.model, message.role) == (model, "assistant")
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert 0 < whole.usage.completion_tokens <= OPTIONS["max_tokens"]
    assert streamed(client, asked) == message.content
    assert asyncio.run(asked_asynchronously(asked)) == [message.content] * 2
    likely = exact(client.chat.completions, "create", **asked, logprobs=True, top_logprobs=2)
    assert len(likely.choices[0].logprobs.content[0].top_logprobs) == 2
    check_texts(client, model)
    check_refusals(client, model)


def streamed(client: openai.OpenAI, asked: dict[str, Any]) -> str:
    """The text of a stream, whose chunks were each compared with the client's type."""
    raw = client.chat.completions.with_raw_response.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(sent(raw.http_response, ChatCompletionChunk))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    with client.chat.completions.create(**asked, stream=True) as stream:
        parsed = [chunk.choices[0] for chunk in stream]
    assert parsed[-1].finish_reason in ("stop", "length")
    pieces = [each["delta"].get("content") or "" for chunk in chunks for each in chunk["choices"]]
    assert "".join(pieces) == "".join(choice.delta.content or "" for choice in parsed)
    return "".join(pieces)


def sent(response: Any, kind: Any) -> Iterator[Any]:
    """The decoded events of a stream, each exactly a `kind`, up to its end."""
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            require_exact(data, kind)
            yield data
    raise AssertionError("the stream has no end")


async def asked_asynchronously(asked: dict[str, Any]) -> list[str | None]:
    async with openai.AsyncOpenAI(max_retries=0) as client:
        whole = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(**asked, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    return [whole.choices[0].message.content, "".join(pieces)]


def check_texts(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "prompt": "the report", **OPTIONS}
    whole = exact(client.completions, "create", **asked)
    raw = client.completions.with_raw_response.create(**asked, stream=True)
    chunks = sent(raw.http_response, Completion)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole.choices[0].text
    several = exact(client.completions, "create", **{**asked, "prompt": ["the", "a"]}, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def check_refusals(client: openai.OpenAI, model: str) -> None:
    create = client.chat.completions.create
    form = refused(
        openai.BadRequestError,
        lambda: create(model=model, messages=MESSAGES, response_format={"type": "json_object"}),
    )
    assert (form.param, form.type) == ("response_format", "invalid_request_error")
    missing = refused(
        openai.NotFoundError,
        lambda: create(model="ft:none:default::job-none", messages=MESSAGES),
    )
    assert missing.code == "model_not_found"
