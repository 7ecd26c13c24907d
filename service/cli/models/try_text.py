"""The texts of `finetune try`: the service streams them through its OpenAI API."""

from collections.abc import Iterator
from typing import Final

from service.cli.models import try_chat
from service.cli.models.try_inputs import Input
from service.cli.terminal.client import ApiError, Client, Json
from service.cli.terminal.exit_codes import UsageError
from service.contract.tasks.chat import GenerateSpec
from service.contract.tasks.parameters import NEW_TOKENS

_TEXT: Final = "causal-lm"
TASKS: Final = (*try_chat.COLUMNS, _TEXT)


class NoAnswerError(Exception):
    """The prediction has failed; the message says why and what to do."""


def options(task: Json, max_new_tokens: int | None, temperature: float | None) -> Json:
    """The job's own sampling with the options of this call, as parameters of OpenAI's API."""
    own = task.get("generate") or task.get("generation") or {}
    if temperature is None:
        temperature = (own.get("temperature") or 1.0) if own.get("do_sample") else 0
    default = NEW_TOKENS if task["type"] == _TEXT else GenerateSpec().max_new_tokens
    tokens = max_new_tokens or own.get("max_new_tokens") or task.get("max_new_tokens") or default
    return {"temperature": temperature, "max_tokens": tokens} | {
        name: own[name] for name in ("top_k", "top_p") if own.get(name)
    }


def pieces(client: Client, job: Json, given: Input, parameters: Json) -> Iterator[str]:
    """The answer, piece by piece. UsageError for a row in another form, ApiError for a request that
    is refused, NoAnswerError."""
    task = job["spec"]["task"]["type"]
    name, kind = ("text", str) if task == _TEXT else (try_chat.COLUMNS[task], list)
    content = given.row.get(name)
    if not isinstance(content, kind):
        form = "a text" if kind is str else "a list of turns"
        raise UsageError(
            f"{given.place}: --max-new-tokens and --temperature need {form} in `{name}`"
        )
    asked = {"prompt": content} if task == _TEXT else {"messages": content}
    path = "/v1/completions" if task == _TEXT else "/v1/chat/completions"
    try:
        for chunk in client.completion(path, {"model": job["id"], **asked, **parameters}):
            if "error" in chunk:
                raise NoAnswerError(chunk["error"]["message"])
            for choice in chunk["choices"]:
                yield choice.get("text") or choice.get("delta", {}).get("content") or ""
    except ApiError as error:
        envelope = error.problem.get("error")
        if not isinstance(envelope, dict):
            raise
        problem = {"status": error.status, "code": envelope["code"], "title": envelope["message"]}
        raise ApiError(error.status, problem) from error
