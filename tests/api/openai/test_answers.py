"""Answers as OpenAI's objects, whole and in chunks, without a server; nulls are left out here."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from service.api.openai import answers
from service.api.openai.answers import AnswerChangedError, ChatChunks, Head, TextChunks
from service.contract.interactive.predictions import PredictionResult

HEAD = Head("id-1", 7, "org/model")
COMMON = {"id": "id-1", "created": 7, "model": "org/model"}
TOKEN = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
TOP = {"token": "Ho", "logprob": -1.5, "bytes": [72, 111]}
LISTED = {"content": [{**TOKEN, "top_logprobs": [TOP]}]}
BOTH = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}


def result(*choices: dict[str, Any]) -> PredictionResult:
    made = [{"text": "", "finish_reason": "stop", **choice} for choice in choices]
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return PredictionResult.model_validate({"choices": made, "usage": usage})


def called(*calls: Any, **message: Any) -> dict[str, Any]:
    return {"text": "<call>", "message": {"role": "assistant", "tool_calls": calls, **message}}


def function(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def sent(model: BaseModel) -> Any:
    return json.loads(
        re.sub(r"call_[0-9a-f]{24}", "call_0", model.model_dump_json(exclude_none=True))
    )


def choices(chunks: Sequence[BaseModel]) -> list[Any]:
    """The only choice of each chunk."""
    found = [sent(chunk) for chunk in chunks]
    assert [chunk.items() >= COMMON.items() for chunk in found] == [True] * len(found)
    return [choice for chunk in found for choice in chunk["choices"]]


def test_an_id_of_its_own() -> None:
    heads = [Head.new(answers.CHAT_PREFIX, "m") for _ in range(2)]
    assert [bool(re.fullmatch("chatcmpl-[0-9a-f]{32}", head.id)) for head in heads] == [True] * 2
    assert heads[0].id != heads[1].id


# What the worker has found, the message that is made of it, and why it ended.
MESSAGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"text": "Hi"}, {"content": "Hi"}, "stop"),
    ({"text": "Hi", "finish_reason": "length"}, {"content": "Hi"}, "length"),
    ({"text": "Hi", "message": {"content": "other"}}, {"content": "Hi"}, "stop"),
    (
        called(function("f", arguments={"city": "Zürich"}), content="Wait."),
        {"content": "Wait.", "tool_calls": [{"name": "f", "arguments": '{"city": "Zürich"}'}]},
        "tool_calls",
    ),
    (
        called(function("f", arguments='{"a":1}'), function("g"), content=[]),
        {
            "tool_calls": [
                {"name": "f", "arguments": '{"a":1}'},
                {"name": "g", "arguments": "{}"},
            ]
        },
        "tool_calls",
    ),
    (
        {**called(function("f")), "finish_reason": "length"},
        {"tool_calls": [{"name": "f", "arguments": "{}"}]},
        "length",
    ),
    # What is not a call is not shown as one.
    (called(3, {"function": "f"}, {}, function(3)), {"content": "<call>"}, "stop"),
    (called(None, function("f")), {"tool_calls": [{"name": "f", "arguments": "{}"}]}, "tool_calls"),
]


@pytest.mark.parametrize(("choice", "message", "finish"), MESSAGES)
def test_a_message(choice: dict[str, Any], message: dict[str, Any], finish: str) -> None:
    given = result({"text": "first"}, choice)
    whole = answers.chat_completion(HEAD, given, {"a": "b"})
    calls = [
        {"id": "call_0", "type": "function", "function": each}
        for each in message.get("tool_calls", ())
    ]
    expected = {**message, **({"tool_calls": calls} if calls else {})}
    first = {"role": "assistant", "content": "first"}
    assert sent(whole) == {
        **COMMON,
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": first, "finish_reason": "stop"},
            {"index": 1, "message": {"role": "assistant", **expected}, "finish_reason": finish},
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        "metadata": {"a": "b"},
    }
    numbered = [{"index": number, **call} for number, call in enumerate(calls)]
    delta = {**message, **({"tool_calls": numbered} if calls else {})}
    assert choices(ChatChunks(HEAD, is_whole=True).ended(0, given))[2:] == [
        {"index": 1, "delta": delta},
        {"index": 1, "delta": {}, "finish_reason": finish},
    ]


def test_how_likely_each_token_was() -> None:
    given = result({"text": "Hi", "logprobs": [{**TOKEN, "top": [TOP]}]})
    (choice,) = sent(answers.chat_completion(HEAD, given, None))["choices"]
    assert choice["logprobs"] == LISTED
    chunks = ChatChunks(HEAD, is_whole=True)
    assert chunks.grown(0, ["H"]) == []
    assert choices(chunks.ended(0, given)) == [
        {"index": 0, "delta": {"content": "Hi"}, "logprobs": LISTED},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    empty = result({"logprobs": [{**TOKEN, "top": []}]})
    assert choices(chunks.ended(0, empty))[0]["logprobs"]["content"][0]["token"] == "Hi"
    texts = TextChunks(HEAD, [""], 1, is_whole=True)
    listed = {"text_offset": [0], "token_logprobs": [-0.5], "tokens": ["Hi"]}
    assert choices(texts.ended(0, given)) == [
        {
            **{"index": 0, "text": "Hi", "finish_reason": "stop"},
            "logprobs": {**listed, "top_logprobs": [{"Ho": -1.5}]},
        }
    ]
    assert choices(texts.ended(0, empty))[0]["logprobs"] == listed


def test_a_conversation_in_chunks() -> None:
    chunks = ChatChunks(HEAD, is_whole=False)
    role = {"role": "assistant", "content": ""}
    assert choices(chunks.begin(2)) == [{"index": 0, "delta": role}, {"index": 1, "delta": role}]
    assert choices(chunks.grown(0, ["a", ""])) == [{"index": 0, "delta": {"content": "a"}}]
    assert choices(chunks.grown(0, ["abc", "x"])) == [
        {"index": 0, "delta": {"content": "bc"}},
        {"index": 1, "delta": {"content": "x"}},
    ]
    # Another worker has begun again.
    assert chunks.grown(0, ["a", "y"]) == []
    assert choices(chunks.ended(0, result({"text": "abcd"}, {"text": "x"}))) == [
        {"index": 0, "delta": {"content": "d"}},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
        {"index": 1, "delta": {}, "finish_reason": "stop"},
    ]
    assert sent(chunks.usage([result(), result()])) == {
        **COMMON,
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": BOTH,
    }
    says = "^Another worker had to begin again, and its text is a different one. Ask again.$"
    with pytest.raises(AnswerChangedError, match=says):
        chunks.ended(0, result({"text": "abd"}, {"text": "x"}))


def test_texts_in_chunks() -> None:
    chunks = TextChunks(HEAD, ["p", "q"], 2, is_whole=False)
    assert choices(chunks.begin(2)) == [
        {"index": index, "text": prompt} for index, prompt in enumerate("ppqq")
    ]
    assert choices(chunks.grown(1, ["", "a"])) == [{"index": 3, "text": "a"}]
    ended = chunks.ended(1, result({"text": "b", "finish_reason": "length"}, {"text": "ac"}))
    assert choices(ended) == [
        {"index": 2, "text": "b", "finish_reason": "length"},
        {"index": 3, "text": "c", "finish_reason": "stop"},
    ]
    assert sent(chunks.usage([result(), PredictionResult(), result()])) == {
        **COMMON,
        "object": "text_completion",
        "choices": [],
        "usage": BOTH,
    }
    assert TextChunks(HEAD, [""], 1, is_whole=False).begin(1) == []


def test_texts_at_once() -> None:
    logprobs = [{**TOKEN, "top": [TOP]}, {**TOKEN, "top": []}]
    first = result({"text": "a"}, {"text": "b"})
    last = result({"text": "c"}, {"text": "HiHi", "finish_reason": "length", "logprobs": logprobs})
    assert sent(answers.completion(HEAD, [first, last], ["p", ""])) == {
        **COMMON,
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": "pa", "finish_reason": "stop"},
            {"index": 1, "text": "pb", "finish_reason": "stop"},
            {"index": 2, "text": "c", "finish_reason": "stop"},
            {
                **{"index": 3, "text": "HiHi", "finish_reason": "length"},
                "logprobs": {
                    "text_offset": [0, 2],
                    "token_logprobs": [-0.5, -0.5],
                    "tokens": ["Hi", "Hi"],
                    "top_logprobs": [{"Ho": -1.5}, {}],
                },
            },
        ],
        "usage": BOTH,
    }
