"""`finetune try`: the answers of a finished model to a few inputs, from a worker of the service."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Final

import typer
from finetune_client.http import calls

from service.cli.models import try_answers, try_inputs, try_text
from service.cli.models.try_inputs import Input, Source
from service.cli.models.try_text import NoAnswerError
from service.cli.terminal import output, wait_reasons
from service.cli.terminal.client import ApiError, Client, Json
from service.cli.terminal.exit_codes import FAILED, UsageError
from service.contract.interactive.predictions import MOST_NEW_TOKENS

_TOGETHER: Final = 32
"""Rows of a file that are asked at once: a request and its answer have at most 1 MiB each."""
_ROW: Final = re.compile(r"rows\[(\d+)\]")
"""How the service names a row of a request."""
_SLOW_SECONDS: Final = 2.0

_Texts = Annotated[list[str] | None, typer.Argument(metavar="[INPUT]…", help="Texts or prompts.")]
_Question = Annotated[str | None, typer.Option(help="For question-answering.")]
_Context = Annotated[str | None, typer.Option(help="The passage with the answer.")]
_TextPair = Annotated[str | None, typer.Option(help="The second text of a pair.")]
_System = Annotated[str | None, typer.Option(help="For chat and preference: the system's turn.")]
_File = Annotated[
    str | None,
    typer.Option("--input", metavar="FILE", help="JSON lines, or one text a line; - is stdin."),
]
_MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, max=MOST_NEW_TOKENS, help="For causal-lm, chat, preference.")
]
_Temperature = Annotated[
    float | None,
    typer.Option(min=0, max=2, help="For the same: sample texts; 0: the likeliest tokens."),
]


def try_model(
    job_id: str,
    inputs: _Texts = None,
    question: _Question = None,
    context: _Context = None,
    text_pair: _TextPair = None,
    system: _System = None,
    input_: _File = None,
    max_new_tokens: _MaxNewTokens = None,
    temperature: _Temperature = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Ask the finished model of a job; a worker of the service answers.

    Without an input it asks for one, line by line. With --json: one line for each input.
    """
    given = try_inputs.InputOptions(inputs or [], question, context, text_pair, input_, system)
    with Client.from_environment() as client:
        job = client.get(f"/v1/jobs/{client.job_id(job_id)}")
        task = job["spec"]["task"]
        source = try_inputs.source(task["type"], given)
        has_options = _require_options(task["type"], max_new_tokens, temperature)
        parameters = None
        if task["type"] in try_text.TASKS and (has_options or not source.has_lines):
            parameters = try_text.options(task, max_new_tokens, temperature)
        _Session(client, job, parameters, json=json).answer(source)


def _require_options(task: str, max_new_tokens: int | None, temperature: float | None) -> bool:
    """Whether one is given. UsageError if the task does not have it."""
    options = {"--max-new-tokens": max_new_tokens, "--temperature": temperature}
    given = [option for option, value in options.items() if value is not None]
    if given and task not in try_text.TASKS:
        raise UsageError(f"{given[0]} does not apply to {task}")
    return bool(given)


class _Session:
    """The questions to one model. `parameters`: its answers are texts that are written with them;
    None: they are those to rows, as `mode: predict` gives them."""

    def __init__(self, client: Client, job: Json, parameters: Json | None, *, json: bool) -> None:
        self._client = client
        self._job = job
        self._parameters = parameters
        self._json = json
        self._named = False

    def answer(self, source: Source) -> None:
        """Answer all inputs. One that cannot be answered ends the command; a person may go on."""
        for batch in _batches(source.inputs, 1 if source.is_interactive else _TOGETHER):
            self._named = self._named or len(batch) > 1
            try:
                for answer in self._answers(batch):
                    source.answered(answer)
            except ApiError as error:
                for fault in error.errors:
                    fault["path"] = with_places(str(fault.get("path")), batch)
                if not source.is_interactive:
                    raise
                output.show_problem(error.problem)
            except NoAnswerError as error:
                output.complain(with_places(str(error), batch))
                if not source.is_interactive:
                    raise typer.Exit(FAILED) from None

    def _answers(self, batch: Sequence[Input]) -> Iterator[Json]:
        """Each is shown before it is given."""
        if self._parameters is None:
            yield from self._to_rows(batch)
        else:
            for given in batch:
                yield self._text(given, self._parameters)

    def _to_rows(self, batch: Sequence[Input]) -> Iterator[Json]:
        rows = [given.row for given in batch]
        with _loading():
            call = calls.predict(self._job["id"], rows, None, calls.MOST_WAIT)
            found = self._client.send(call)
        found = wait_reasons.ended(self._client, found, "/v1/predictions")
        for notice in found["notices"]:
            output.note(notice)
        if failure := found["failure"]:
            raise NoAnswerError(f"{failure['message']} {failure['action']}")
        for given, answer in zip(batch, found["answers"], strict=True):
            if self._json:
                output.print_json({"input": given.row, **answer})
            else:
                self._show_title(given)
                output.print_lines(try_answers.lines(self._job["spec"]["task"]["type"], answer))
            yield answer

    def _text(self, given: Input, parameters: Json) -> Json:
        written = ""
        try:
            with _loading() as has_loaded:
                pieces = try_text.pieces(self._client, self._job, given, parameters)
                for number, piece in enumerate(pieces):
                    if number == 0 and not self._json:  # an input that is refused has no title
                        self._show_title(given)
                    if piece:
                        has_loaded()
                    written += piece
                    if not self._json:
                        output.print_text(piece)
        except BaseException:
            if written and not self._json:
                output.print_text("\n")
            raise
        if self._json:
            output.print_json({"input": given.row, "prediction": written})
        else:
            output.print_text("\n")
        return {"prediction": written}

    def _show_title(self, given: Input) -> None:
        if self._named:
            output.print_line(f"> {try_inputs.title(given.row)}")


@contextmanager
def _loading() -> Iterator[Callable[[], None]]:
    """Print what the user waits for, unless that takes only a moment; call the yielded function
    when it is over."""
    timer = threading.Timer(_SLOW_SECONDS, output.note, ["A worker loads the model …"])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def with_places(message: str, batch: Sequence[Input]) -> str:
    """A message about rows of a request, with the places where the user gave them."""

    def place(found: re.Match[str]) -> str:
        number = int(found[1])
        return batch[number].place if number < len(batch) else found[0]

    return _ROW.sub(place, message)


def _batches(inputs: Iterable[Input], size: int) -> Iterator[list[Input]]:
    given = iter(inputs)
    while batch := list(islice(given, size)):
        yield batch
