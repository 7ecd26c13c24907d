"""What requests for text ask workers for, and what is refused of them, without a server."""

from typing import Any

import pytest

from service.api.openai.schemas.chat_request import ChatCompletionRequest
from service.api.openai.schemas.completion_request import CompletionRequest
from service.api.problems.errors import InvalidRequestError
from service.contract.interactive.predictions import GenerationOptions

HELLO = {"role": "user", "content": "Hello"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAMPLING = {
    **{"temperature": 0.5, "top_p": 0.9, "top_k": 4, "n": 2, "seed": -3},
    **{"presence_penalty": 1.0, "frequency_penalty": -1.0},
}


def chat(**body: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.parse({"model": "m", "messages": [HELLO], **body})


def text(**body: Any) -> CompletionRequest:
    return CompletionRequest.parse({"model": "m", "prompt": "a", **body})


# A turn as it is sent, and as a chat template reads it.
TURNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**HELLO, "name": None, "tool_calls": [], "annotations": []}, HELLO),
    (
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {
            "role": "assistant",
            "tool_calls": [CALL],
        },
    ),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}],
        },
    ),
    (
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "call_1"},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "x"}],
            "tool_call_id": "call_1",
        },
    ),
]


@pytest.mark.parametrize(("turn", "read"), TURNS)
def test_a_turn(turn: dict[str, Any], read: dict[str, Any]) -> None:
    assert chat(messages=[turn]).input().messages == [read]


# Parameters of a conversation, and what of the worker's request differs.
INPUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"tools": []}, {}),
    ({"tools": [TOOL], "tool_choice": "none"}, {}),
    ({"tools": [{**TOOL, "function": {**FUNCTION, "strict": None}}]}, {"tools": [TOOL]}),
    ({"tools": [TOOL], "tool_choice": "auto"}, {"tools": [TOOL]}),
    ({"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
]


@pytest.mark.parametrize(("given", "differences"), INPUTS)
def test_the_input_of_a_conversation(given: dict[str, Any], differences: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "kind": "chat",
        "messages": [HELLO],
        "tools": None,
        "chat_template_kwargs": {},
    }
    assert chat(**given).input().model_dump() == {**usual, **differences}


# Parameters, and the options of a conversation and of a text: of each those that differ.
OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    (SAMPLING, SAMPLING),
    (dict.fromkeys(SAMPLING), {}),
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"stop": "\n"}, {"stop": ["\n"]}),
    ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"max_tokens": 5}, {"max_new_tokens": 5}),
]


@pytest.mark.parametrize(("given", "differences"), OPTIONS)
def test_the_options(given: dict[str, Any], differences: dict[str, Any]) -> None:
    assert chat(**given).options() == GenerationOptions(**differences)
    assert text(**given).options() == GenerationOptions(**{"max_new_tokens": 16, **differences})


def test_options_of_one_kind_alone() -> None:
    assert chat(max_completion_tokens=5, max_tokens=5).options().max_new_tokens == 5
    assert chat(logprobs=True).options().logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).options().logprobs == 3
    assert chat(logprobs=False).options().logprobs is None
    assert [text(logprobs=number).options().logprobs for number in (None, 0, 2)] == [None, 0, 2]
    assert [each.prompt for each in text(prompt=["a", "b"], best_of=1).inputs()] == ["a", "b"]
    assert text(best_of=2, n=2).options().n == 2


# Parameters, and each fault: path, code, the value given.
Faults = list[tuple[str, str, Any]]
STRICT = {"type": "function", "function": {"name": "f", "strict": True}}
OF_BOTH: list[tuple[dict[str, Any], Faults]] = [
    (
        {"logit_bias": {"5": 1}, "stream_options": {"include_usage": True}},
        [
            ("logit_bias", "unsupported_option", "object with 1 fields"),
            ("stream_options", "conflict", None),
        ],
    ),
    ({"stream_options": {}, "stream": False}, [("stream_options", "conflict", None)]),
    (
        {"logit_bias": {"5": 1}, "top_p": 0},
        [
            ("logit_bias", "unsupported_option", "object with 1 fields"),
            ("top_p", "invalid_value", 0),
        ],
    ),
]
OF_CHAT: list[tuple[dict[str, Any], Faults]] = [
    ({"max_tokens": 4, "max_completion_tokens": 5}, [("max_tokens", "conflict", None)]),
    ({"logprobs": False, "top_logprobs": 0}, [("top_logprobs", "conflict", None)]),
    (
        {"response_format": {"type": "json_object"}},
        [("response_format", "unsupported_option", "json_object")],
    ),
    ({"response_format": {"a": 1}}, [("response_format", "unsupported_option", None)]),
    (
        {"tool_choice": "required", "parallel_tool_calls": False, "tools": [TOOL, STRICT]},
        [
            ("tool_choice", "unsupported_option", "required"),
            ("parallel_tool_calls", "unsupported_option", False),
            ("tools[1].function.strict", "unsupported_option", True),
        ],
    ),
]
OF_TEXTS: list[tuple[dict[str, Any], Faults]] = [
    ({"best_of": 3, "n": 2}, [("best_of", "unsupported_option", 3)]),
    ({"best_of": 2}, [("best_of", "unsupported_option", 2)]),
    ({"echo": True, "logprobs": 0}, [("logprobs", "conflict", None)]),
]


@pytest.mark.parametrize(
    ("ask", "given", "faults"),
    [
        *((ask, *case) for ask in (chat, text) for case in OF_BOTH),
        *((chat, *case) for case in OF_CHAT),
        *((text, *case) for case in OF_TEXTS),
    ],
)
def test_every_fault_is_found(ask: Any, given: dict[str, Any], faults: Faults) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        ask(**given)
    found = raised.value.extra["errors"]
    assert [(each["path"], each["code"], each["given"]) for each in found] == faults
    assert [bool(each["message"]) for each in found] == [True] * len(faults)


def test_faults_say_what_to_do() -> None:
    given = {
        "max_tokens": 4,
        "max_completion_tokens": 5,
        "top_logprobs": 0,
        "response_format": {"type": "json_object"},
    }
    with pytest.raises(InvalidRequestError) as raised:
        chat(**given)
    assert [each["message"] for each in raised.value.extra["errors"]] == [
        "is the older name of `max_completion_tokens`: give one",
        "is only allowed with `logprobs: true`",
        "nothing makes a model keep to a format here: ask for it in the messages, and check the "
        "answer",
    ]


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
@pytest.mark.parametrize("body", [[], "x", None])
def test_a_body_that_is_not_an_object(kind: Any, body: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        kind.parse(body)
    (fault,) = raised.value.extra["errors"]
    assert (fault["path"], fault["code"]) == ("", "invalid_type")


def test_what_clients_send_as_empty_is_not_refused() -> None:
    nothing: tuple[Any, ...] = (None, [], {})
    for empty in nothing:
        assert chat(logit_bias=empty, functions=empty).stops == []
