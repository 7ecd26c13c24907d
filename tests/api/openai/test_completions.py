"""Chat completions and completions, asked for with OpenAI's own client; a thread is the worker."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from sqlalchemy import select, update

from service.api.openai import answers
from service.api.openai.answers import Head
from service.contract.failures import Failure, FailureCode
from service.contract.interactive.predictions import PredictionResult
from service.store.tables.interactive import PredictionRow
from service.store.tables.jobs import JobRow
from tests.api.conftest import Server
from tests.support.factories import claim_job, make_job
from tests.support.servers.services import wait_until
from tests.support.store.job_rows import finished_job
from tests.support.store.predictions import answered_by_thread
from tests.support.store.previews import register_worker

MODEL = "org/model"
HELLO: Any = [{"role": "user", "content": "Hello"}]
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}


def result(*texts: str, **choice: Any) -> PredictionResult:
    choices = [{"text": text, "finish_reason": "stop", **choice} for text in texts]
    return PredictionResult.model_validate({"choices": choices, "usage": USAGE})


TOKEN = {
    **{"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
    "top": [{"token": "Ho", "logprob": -1.5, "bytes": [72, 111]}],
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    ],
}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]


@pytest.fixture
def asking(server: Server) -> Iterator[openai.OpenAI]:
    """A client of a service with a live worker."""
    register_worker(server.database)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def asked(server: Server) -> list[dict[str, Any]]:
    """The requests of all predictions, the oldest first."""
    with server.database.read() as session:
        rows = session.scalars(select(PredictionRow.request).order_by(PredictionRow.id))
        return list(rows)


def states(server: Server) -> list[str]:
    with server.database.read() as session:
        return list(session.scalars(select(PredictionRow.state).order_by(PredictionRow.id)))


def require_exact(kind: Any, given: Any) -> None:
    """Exactly the fields of the client's type, in every object inside as well."""
    if isinstance(given, list):
        for each in given:
            require_exact(kind, each)
    elif isinstance(given, Mapping):
        models = [each for each in _models(kind) if set(each.model_fields) == given.keys()]
        assert models, (kind, sorted(given))
        for name, field in models[0].model_fields.items():
            if _models(field.annotation):
                require_exact(field.annotation, given[name])


def _models(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for part in get_args(kind) for model in _models(part)]


def test_a_chat_completion_has_every_field(server: Server, asking: openai.OpenAI) -> None:
    with answered_by_thread(server.database, result("Hi", logprobs=[TOKEN])):
        raw = asking.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=HELLO,
            temperature=0,
            max_tokens=7,
            stop="\n",
            seed=3,
            logprobs=True,
            top_logprobs=1,
            metadata={"a": "b"},
            extra_body={"top_k": 4, "chat_template_kwargs": {"enable_thinking": False}},
        )
    body = raw.http_response.json()
    require_exact(ChatCompletion, body)
    completion = raw.parse()
    assert completion.id.startswith("chatcmpl-")
    assert abs(completion.created - time.time()) < 60
    assert (completion.model, completion.metadata) == (MODEL, {"a": "b"})
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hi")
    assert (choice.finish_reason, choice.index) == ("stop", 0)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert choice.logprobs.content[0].top_logprobs[0].token == "Ho"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 7
    (request,) = asked(server)
    assert request["model"]["name_or_path"] == MODEL
    assert request["input"] == {
        "kind": "chat",
        "messages": HELLO,
        "tools": None,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    given = {"max_new_tokens": 7, "temperature": 0.0, "top_k": 4, "seed": 3, "stop": ["\n"]}
    assert request["options"].items() >= {**given, "logprobs": 1, "n": 1}.items()


def test_offsets_count_characters_also_where_a_token_is_a_part_of_one() -> None:
    parts = [b"a", *(bytes([byte]) for byte in "漢".encode()), b"b", b"c"]
    logprobs = [
        {"token": part.decode(errors="replace"), "logprob": -1.0, "bytes": list(part), "top": []}
        for part in parts
    ]
    found = answers.completion(
        Head.new(answers.TEXT_PREFIX, MODEL), [result("a漢bc", logprobs=logprobs)], [""]
    )
    assert found.choices[0].logprobs is not None
    assert found.choices[0].logprobs.text_offset == [0, 1, 2, 2, 2, 3]


class TestChat:
    def test_calls_of_tools(self, server: Server, asking: openai.OpenAI) -> None:
        with answered_by_thread(server.database, result("<call>", message=CALL)):
            completion = asking.chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS)
            again: Any = [
                *HELLO,
                completion.choices[0].message,
                {
                    "role": "tool",
                    "content": "sunny",
                    "tool_call_id": completion.choices[0].message.tool_calls[0].id,  # type: ignore[index]
                },
            ]
            asking.chat.completions.create(model=MODEL, messages=again, tool_choice="none")
        (choice,) = completion.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.tool_calls is not None
        call: Any = choice.message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Rome"}')
        first, second = asked(server)
        assert first["input"]["tools"] == TOOLS
        assert [turn["role"] for turn in second["input"]["messages"]] == [
            "user",
            "assistant",
            "tool",
        ]
        assert "content" not in second["input"]["messages"][1]

    def test_a_stream(self, server: Server, asking: openai.OpenAI) -> None:
        texts = (["Hel"], ["Hello"])
        with answered_by_thread(server.database, result("Hello you"), texts):
            stream = asking.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
            chunks = list(stream)
        for chunk in chunks:
            require_exact(ChatCompletionChunk, chunk.model_dump(exclude_unset=True))
        assert len({chunk.id for chunk in chunks}) == 1
        *deltas, finish, usage = chunks
        assert deltas[0].choices[0].delta.role == "assistant"
        pieces = [chunk.choices[0].delta.content for chunk in deltas]
        assert "".join(piece or "" for piece in pieces) == "Hello you"
        assert len(pieces) >= 3
        assert [chunk.choices[0].finish_reason for chunk in (deltas[-1], finish)] == [None, "stop"]
        assert (usage.choices, usage.usage and usage.usage.total_tokens) == ([], 7)

    def test_tools_are_streamed_when_they_are_whole(
        self, server: Server, asking: openai.OpenAI
    ) -> None:
        answer = answered_by_thread(server.database, result("<call>", message=CALL), (["<ca"],))
        with (
            answer,
            asking.chat.completions.stream(model=MODEL, messages=HELLO, tools=TOOLS) as stream,
        ):
            message = stream.get_final_completion().choices[0].message
        assert message.content == ""
        assert message.tool_calls is not None
        assert message.tool_calls[0].function.name == "weather"

    def test_a_failure_in_a_stream_is_an_error(self, server: Server, asking: openai.OpenAI) -> None:
        failure = Failure.from_code(
            FailureCode.SEQUENCE_TOO_LONG, "9 tokens.", action="Shorten it."
        )
        stream = asking.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        with answered_by_thread(server.database, failure), pytest.raises(openai.APIError) as raised:
            list(stream)
        assert "9 tokens. Shorten it." in raised.value.message
        assert raised.value.code == "invalid_prediction"

    def test_a_client_that_disconnects_cancels(self, server: Server, asking: openai.OpenAI) -> None:
        stream = asking.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert stream.response.headers["X-Accel-Buffering"] == "no"  # nginx keeps nothing back
        next(iter(stream))
        assert states(server) == ["queued"]
        stream.close()
        self._require_cancelled(server)

    def test_so_does_one_that_waits_for_the_whole(
        self, server: Server, asking: openai.OpenAI
    ) -> None:
        with pytest.raises(openai.APITimeoutError):
            asking.with_options(timeout=0.5).chat.completions.create(model=MODEL, messages=HELLO)
        self._require_cancelled(server)

    def _require_cancelled(self, server: Server) -> None:
        wait_until(lambda: states(server) == ["cancelled"], 10, "the cancellation")


FAILURES = [
    (FailureCode.MODEL_NOT_FOUND, 404, "model_not_found", None),
    (FailureCode.INVALID_OPTION, 400, "invalid_prediction", None),
    (FailureCode.TIMEOUT, 504, "prediction_timeout", "false"),
    (FailureCode.WORKER_LOST, 503, "prediction_failed", None),
]


class TestErrors:
    def test_of_workers(self, server: Server, asking: openai.OpenAI) -> None:
        for code, status, name, retry in FAILURES:
            failed = answered_by_thread(
                server.database, Failure.from_code(code, "No.", action="Do this.")
            )
            with failed, pytest.raises(openai.APIStatusError) as raised:
                asking.chat.completions.create(model=MODEL, messages=HELLO)
            assert (raised.value.status_code, raised.value.code) == (status, name)
            assert "No. Do this." in raised.value.message
            assert raised.value.response.headers.get("x-should-retry") == retry

    def test_an_unknown_model(self, asking: openai.OpenAI) -> None:
        for model in ("ft:a:b:c:job-12", "ft:a:b:c:job-12:ckpt-step-3", "job-12", "ft:nothing"):
            with pytest.raises(openai.NotFoundError) as raised:
                asking.chat.completions.create(model=model, messages=HELLO)
            assert raised.value.code == "model_not_found"

    @pytest.mark.parametrize(
        "model", ["gpt-4o-mini", "gpt-3.5-turbo", "o3", "chatgpt-4o-latest", "a/b/c", "my model"]
    )
    def test_a_name_that_no_model_can_have_needs_no_worker(
        self, server: Server, model: str
    ) -> None:
        body = {"model": model, "messages": HELLO}
        answer = server.client.post("/v1/chat/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "model_not_found")
        assert f"There is no model '{model}': GET /v1/models lists" in error["message"]
        assert states(server) == []

    @pytest.mark.parametrize("model", ["gpt2", "distilgpt2", "openai-gpt", "org/gpt-4o", "o/1"])
    def test_names_of_the_hub_are_left_to_a_worker(self, server: Server, model: str) -> None:
        answer = server.client.post(
            "/v1/chat/completions", json={"model": model, "messages": HELLO}
        )
        assert answer.json()["error"]["code"] == "no_worker"

    def test_a_model_without_conversations(self, server: Server, asking: openai.OpenAI) -> None:
        job_id = finished_job(server.database)
        with pytest.raises(openai.BadRequestError) as raised:
            asking.chat.completions.create(model=f"ft:a:b::{job_id}", messages=HELLO)
        assert raised.value.code == "invalid_prediction"
        assert "`question-answering`" in raised.value.message

    def test_a_path_that_is_not_allowed(self, asking: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as raised:
            asking.completions.create(model="/etc", prompt="a")
        assert raised.value.param == "model"

    def test_without_a_worker(self, server: Server) -> None:
        body = {"model": MODEL, "messages": HELLO}
        answer = server.client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.json()["error"]["code"] == "no_worker"
        assert "finetune worker --queues cpu" in answer.json()["error"]["message"]
        assert states(server) == []

    def test_while_all_workers_train(self, server: Server, asking: openai.OpenAI) -> None:
        claim_job(server.database, make_job(server.database), "worker-1")
        with pytest.raises(openai.InternalServerError) as raised:
            asking.chat.completions.create(model=MODEL, messages=HELLO)
        assert raised.value.status_code == 503
        assert "finetune worker --queues predict" in raised.value.message

    def test_while_a_training_has_the_cpu_of_another_worker(
        self, server: Server, asking: openai.OpenAI
    ) -> None:
        register_worker(server.database, "worker-2", queue="predict")
        claim_job(server.database, make_job(server.database), "worker-1")
        with answered_by_thread(server.database, result("Hi")):
            completion = asking.chat.completions.create(model=MODEL, messages=HELLO)
            assert completion.choices[0].message.content == "Hi"  # its stage is prepare
            with server.database.write() as session:
                session.execute(update(JobRow).values(stage="train"))
            with pytest.raises(openai.InternalServerError) as raised:
                asking.chat.completions.create(model=MODEL, messages=HELLO)
        assert raised.value.code == "no_worker"
        assert "FINETUNE_PREDICTION_CPU_BYTES" in raised.value.message


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 3}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"n": 9}, "n"),
    ({"max_token": 5}, "max_token"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0].type"),
    ({"store": True}, "store"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"model": "a\x00"}, "model"),
]


@pytest.mark.parametrize(("changes", "param"), REFUSED)
def test_nothing_is_ignored_in_silence(
    shared_client: httpx.Client, changes: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": HELLO, **changes}
    answer = shared_client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"


def test_what_changes_nothing_is_accepted(server: Server, asking: openai.OpenAI) -> None:
    with answered_by_thread(server.database, result("Hi")):
        completion = asking.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                *HELLO,
            ],
            user="me",
            store=False,
            safety_identifier="x",
            prompt_cache_key="y",
            parallel_tool_calls=True,
            response_format={"type": "text"},
            modalities=["text"],
            service_tier="auto",
            logit_bias={},
            max_completion_tokens=5,
        )
    assert completion.choices[0].message.content == "Hi"


class TestCompletions:
    def test_several_prompts(self, server: Server, asking: openai.OpenAI) -> None:
        with answered_by_thread(server.database, result("x", "y")):
            raw = asking.completions.with_raw_response.create(
                model=MODEL, prompt=["a", "b"], n=2, echo=True
            )
        require_exact(Completion, raw.http_response.json())
        completion = raw.parse()
        assert completion.id.startswith("cmpl-")
        texts = [(choice.index, choice.text) for choice in completion.choices]
        assert texts == [(0, "ax"), (1, "ay"), (2, "bx"), (3, "by")]
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 4
        assert [each["input"] for each in asked(server)] == [
            {"kind": "completion", "prompt": "a"},
            {"kind": "completion", "prompt": "b"},
        ]
        assert asked(server)[0]["options"]["max_new_tokens"] == 16

    def test_logprobs(self, server: Server, asking: openai.OpenAI) -> None:
        with answered_by_thread(server.database, result("HiHi", logprobs=[TOKEN, TOKEN])):
            completion = asking.completions.create(model=MODEL, prompt="a", logprobs=1)
        found = completion.choices[0].logprobs
        assert found is not None
        assert (found.tokens, found.text_offset) == (["Hi", "Hi"], [0, 2])
        assert (found.token_logprobs, found.top_logprobs) == ([-0.5, -0.5], [{"Ho": -1.5}] * 2)

    def test_a_stream(self, server: Server, asking: openai.OpenAI) -> None:
        with answered_by_thread(server.database, result("xyz"), (["x"], ["xy"])):
            chunks = list(
                asking.completions.create(model=MODEL, prompt="a", echo=True, stream=True)
            )
        for chunk in chunks:
            require_exact(Completion, chunk.model_dump(exclude_unset=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "axyz"
        assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"suffix": "b"}, "suffix"),
            ({"best_of": 3}, "best_of"),
            ({"prompt": [1, 2]}, "prompt[0]"),
            ({"echo": True, "logprobs": 1}, "logprobs"),
        ],
    )
    def test_what_is_refused(
        self, shared_client: httpx.Client, changes: dict[str, Any], param: str
    ) -> None:
        body = {"model": MODEL, "prompt": "a", **changes}
        answer = shared_client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_text_that_another_worker_wrote_differently_is_not_an_answer(
    server: Server, asking: openai.OpenAI
) -> None:
    stream = asking.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    answered = answered_by_thread(server.database, result("Good day"), (["Hel"], ["Hello"]))
    with answered, pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.code == "answer_changed"


def test_the_seventeenth_prediction_of_a_project_is_refused(server: Server) -> None:
    register_worker(server.database)
    url = f"{server.url}/v1/completions"
    body = {"model": MODEL, "prompt": list("abcdefgh"), "stream": True}
    with (
        httpx.stream("POST", url, json=body) as first,
        httpx.stream("POST", url, json=body) as second,
    ):
        third = server.client.post("/v1/completions", json=body)
        assert [first.status_code, second.status_code] == [200, 200]
        assert third.status_code == 429
    assert third.json()["error"]["code"] == "too_many_predictions"
    assert third.headers["Retry-After"] == "2"
