"""POST /v1/chat/completions and /v1/completions: a look at what a model has learned.

Workers compute the answers; the request waits for them without a thread of its own.
"""

import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel

from service.api.http.dependencies import ParsedBody, Services, ServicesDep
from service.api.http.limits import Waiters
from service.api.http.principal import JobsWrite
from service.api.interactive import prediction_watch
from service.api.interactive.prediction_watch import Asked
from service.api.openai import answers
from service.api.openai.answers import ChatChunks, Head, TextChunks
from service.api.openai.errors import envelope
from service.api.openai.parameters import TextRequest
from service.api.openai.schemas.chat_request import ChatCompletionRequest
from service.api.openai.schemas.completion_request import CompletionRequest
from service.api.openai.schemas.completions import ChatCompletion, Completion
from service.api.openapi.document import body, problems
from service.api.openapi.names import reference
from service.api.problems.errors import problem_of
from service.contract.fields import patterns
from service.contract.interactive.predictions import (
    PredictedModel,
    PredictionRequest,
    PredictionResult,
)
from service.contract.spec import model_names
from service.errors import DomainError, ModelNotFoundError

router = APIRouter(tags=["predictions"])

_PING_SECONDS: Final = 15.0
_DONE: Final = format_sse_event(data_str="[DONE]")
_OF_OPENAI: Final = re.compile(
    r"(gpt-\d|chatgpt-|o\d(-|$)|(text|code)-(davinci|curie|babbage|ada)|(davinci|babbage)-002)"
    r"[^/]*$"
)
"""Models that OpenAI serves; the Hub's few repositories without a namespace are all older."""
_PROBLEMS: Final = problems(400, 401, 404, 409, 413, 415, 422, 429, 503, 504)


@dataclass(frozen=True)
class _Caller:
    """A request that waits for an answer."""

    request: Request
    services: Services
    waiters: Waiters


async def _caller(request: Request, services: ServicesDep) -> _Caller:
    return _Caller(request, services, request.app.state.prediction_waiters)


CallerDep = Annotated[_Caller, Depends(_caller)]


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    summary="Ask a model in a conversation",
    openapi_extra=body({"schema": reference("ChatCompletionRequest")}),
    responses=_PROBLEMS,
)
async def create_chat_completion(principal: JobsWrite, body: ParsedBody, caller: CallerDep) -> Any:
    """As OpenAI's API has it, for a fine-tuned model, a checkpoint or a base model. A worker loads
    the model when it is asked, and keeps it for some minutes; with `stream: true` the answer comes
    as server-sent events. 503 when no worker can answer now."""
    asked_for = ChatCompletionRequest.parse(body)
    head = Head.new(answers.CHAT_PREFIX, asked_for.model)
    chat, options = asked_for.input(), asked_for.options()
    wanted = [PredictionRequest(model=_model(head.model), input=chat, options=options)]
    if asked_for.stream:
        is_whole = chat.tools is not None or options.logprobs is not None
        chunks = ChatChunks(head, is_whole=is_whole)
        return await _streamed(caller, principal.project, wanted, chunks, asked_for)
    results = await _results(caller, principal.project, wanted)
    return answers.chat_completion(head, results[0], asked_for.metadata)


@router.post(
    "/v1/completions",
    response_model=Completion,
    summary="Have a model continue a text",
    openapi_extra=body({"schema": reference("CompletionRequest")}),
    responses=_PROBLEMS,
)
async def create_completion(principal: JobsWrite, body: ParsedBody, caller: CallerDep) -> Any:
    """As OpenAI's API has it: the text is given to the model as it is, without a chat template."""
    asked_for = CompletionRequest.parse(body)
    head = Head.new(answers.TEXT_PREFIX, asked_for.model)
    options, model = asked_for.options(), _model(asked_for.model)
    wanted = [
        PredictionRequest(model=model, input=each, options=options) for each in asked_for.inputs()
    ]
    echoed = [prompt if asked_for.echo else "" for prompt in asked_for.prompts]
    if asked_for.stream:
        is_whole = options.logprobs is not None
        chunks = TextChunks(head, echoed, options.n, is_whole=is_whole)
        return await _streamed(caller, principal.project, wanted, chunks, asked_for)
    results = await _results(caller, principal.project, wanted)
    return answers.completion(head, results, echoed)


def _model(name: str) -> PredictedModel:
    """Raises ModelNotFoundError for a name that no model can have."""
    tuned = model_names.parse(name)
    if tuned is not None:
        return PredictedModel(job=tuned.job_id, step=tuned.step)
    if re.match(patterns.JOB_ID, name):
        return PredictedModel(job=name)
    is_path = name.startswith(prediction_watch.PATH_STARTS)
    if not is_path and (not re.match(patterns.HUB_REPOSITORY, name) or _OF_OPENAI.match(name)):
        raise ModelNotFoundError(
            f"There is no model {name[:200]!r}: GET /v1/models lists those of the project, and a "
            "base model has its Hub id (`namespace/name`) or its path."
        )
    return PredictedModel(name_or_path=name)


async def _begun(caller: _Caller, project: str, wanted: Sequence[PredictionRequest]) -> Asked:
    """Raises what `prediction_watch.begin` raises."""
    begin = partial(prediction_watch.begin, needs_worker=True)
    return await to_thread.run_sync(begin, caller.services, project, wanted)


async def _results(
    caller: _Caller, project: str, wanted: Sequence[PredictionRequest]
) -> list[PredictionResult]:
    """The results of all predictions, in order. Raises the error of the first without a result."""
    with prediction_watch.room(caller.waiters):
        asked = await _begun(caller, project, wanted)
        async with prediction_watch.cancelled_unless_ended(asked):
            async for _ in prediction_watch.progress(asked, caller.request):
                pass
            return await to_thread.run_sync(prediction_watch.results, asked)


async def _streamed(
    caller: _Caller,
    project: str,
    wanted: Sequence[PredictionRequest],
    chunks: ChatChunks | TextChunks,
    asked_for: TextRequest,
) -> EventSourceResponse:
    """A refused request gets an error status; a later failure becomes an event with `error`."""
    with prediction_watch.room(caller.waiters):
        asked = await _begun(caller, project, wanted)
    has_usage = asked_for.stream_options is not None and asked_for.stream_options.include_usage
    events = _events(caller, asked, chunks, number=asked_for.n or 1, has_usage=bool(has_usage))
    return EventSourceResponse(events, headers={"X-Accel-Buffering": "no"})


async def _events(
    caller: _Caller, asked: Asked, chunks: ChatChunks | TextChunks, *, number: int, has_usage: bool
) -> AsyncIterator[bytes]:
    try:
        async with prediction_watch.cancelled_unless_ended(asked):
            with prediction_watch.room(caller.waiters):
                for chunk in chunks.begin(number):
                    yield _event(chunk)
                async for event in _grown(caller, asked, chunks):
                    yield event
            results = await to_thread.run_sync(prediction_watch.results, asked)
            for place, result in enumerate(results):
                for chunk in chunks.ended(place, result):
                    yield _event(chunk)
            if has_usage:
                yield _event(chunks.usage(results))
    except DomainError as error:
        request = caller.request
        problem = problem_of(request.url.path, request.state.request_id, error)
        yield format_sse_event(data_str=json.dumps({"error": envelope(problem)}))
        return
    yield _DONE


async def _grown(
    caller: _Caller, asked: Asked, chunks: ChatChunks | TextChunks
) -> AsyncIterator[bytes]:
    """The new parts of the texts, and comments while there are none, so that proxies keep
    waiting."""
    quiet_since = time.monotonic()
    async for found in prediction_watch.progress(asked, caller.request):
        events = [
            _event(chunk)
            for place, each in enumerate(found)
            for chunk in chunks.grown(place, each.texts)
        ]
        if not events and time.monotonic() - quiet_since >= _PING_SECONDS:
            events = [KEEPALIVE_COMMENT]
        for event in events:
            quiet_since = time.monotonic()
            yield event


def _event(chunk: BaseModel) -> bytes:
    return format_sse_event(data_str=chunk.model_dump_json())
