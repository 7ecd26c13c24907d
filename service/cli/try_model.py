"""`finetune try`: a finished model's answers to a few inputs, computed on this machine."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Annotated, Any, Final

import typer

from service.cli import finished_models, inference_process, output, try_answers, try_inputs
from service.cli.client import Client, Json
from service.cli.exit_codes import FAILED, OK, UsageError
from service.cli.try_inputs import Input
from service.contract.inference import ROWS_FILE, InferenceRequest

_TOGETHER: Final = 256
"""Rows of a file that are predicted at once."""
_ROW: Final = re.compile(rf"(?:{re.escape(ROWS_FILE)}, line|Row) (\d+)(?: of the test split)?")
"""How the code of a job names a row."""

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
    int | None, typer.Option(min=1, max=100_000, help="For causal-lm, chat, preference.")
]
_Temperature = Annotated[
    float | None, typer.Option(min=0, help="Sample texts; 0: the likeliest tokens.")
]
_TopK = Annotated[int | None, typer.Option(min=1, max=1000, help="For masked-lm: candidates.")]
_Device = Annotated[
    str, typer.Option(help="cpu, cuda or cuda:N. GPUs belong to trainings by default.")
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
    top_k: _TopK = None,
    device: _Device = "cpu",
    *,
    json: output.AsJson = False,
) -> None:
    """Run the finished model of a job on inputs, on this machine.

    Without an input it asks for one, line by line. With --json: one line for each input.
    """
    inference_process.require_packages()
    use_gpu = inference_process.is_gpu(device)
    given = try_inputs.Given(inputs or [], question, context, text_pair, input_, system)
    with ExitStack() as stack:
        client = stack.enter_context(Client.from_environment())
        job = client.get(f"/v1/jobs/{client.job_id(job_id)}")
        task = changed(job["spec"]["task"], max_new_tokens, temperature, top_k)
        source = try_inputs.source(task["type"], given)
        found = finished_models.find(client, job)
        request = InferenceRequest(
            spec=job["spec"] | {"task": task},
            model_dir=found.folder,
            base_model=found.base_model,
            folder=stack.enter_context(inference_process.temporary_folder()),
            cache_dir=found.cache_dir,
            use_gpu=use_gpu,
        )
        model = stack.enter_context(inference_process.Model(request, device))
        failed = _answer_all(model, task, source, json=json)
    raise typer.Exit(FAILED if failed else OK)


def changed(
    task: Json, max_new_tokens: int | None, temperature: float | None, top_k: int | None
) -> Json:
    """The job's `task` with the options of this call; UsageError if it has no such option."""
    if "generate" in task:
        return _changed_answers(task, max_new_tokens, temperature, top_k)
    given: dict[str, tuple[Any, str]] = {
        "max_new_tokens": (max_new_tokens, "--max-new-tokens"),
        "top_k": (top_k, "--top-k"),
    }
    changes: Json = {}
    for name, (value, option) in given.items():
        if value is not None and name not in task:
            raise UsageError(f"{option} does not apply to {task['type']}")
        if value is not None:
            changes[name] = value
    if temperature is not None:
        if "generation" not in task:
            raise UsageError(f"--temperature does not apply to {task['type']}")
        changes["generation"] = {**task["generation"], **_sampling(temperature)}
    return {**task, **changes}


def _changed_answers(
    task: Json, max_new_tokens: int | None, temperature: float | None, top_k: int | None
) -> Json:
    """Of a task that has all options of generation in `generate`."""
    if top_k is not None:
        raise UsageError(f"--top-k does not apply to {task['type']}")
    changes = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
    changes |= {} if temperature is None else _sampling(temperature)
    return {**task, "generate": {**(task["generate"] or {}), **changes}} if changes else task


def _sampling(temperature: float) -> Json:
    return (
        {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
    )


def _answer_all(
    model: inference_process.Model, task: Json, source: try_inputs.Source, *, json: bool
) -> bool:
    """Whether some input could not be used. An interactive user may give another one."""
    failed = several = False
    for batch in _batches(source.inputs, 1 if source.is_interactive else _TOGETHER):
        answers = model.answer([given.row for given in batch])
        for notice in answers.notices:
            output.note(notice)
        if answers.failure is not None:
            failed = True
            output.complain(with_places(answers.failure.message, batch))
            if not source.is_interactive:
                break
        several = several or len(batch) > 1
        for given, answer in zip(batch, answers.answers, strict=False):
            source.answered(answer)
            _show(task, given.row, answer, named=several, json=json)
    return failed and not source.is_interactive


def with_places(message: str, batch: Sequence[Input]) -> str:
    """A message about rows of a request, with the places where the user gave them."""

    def place(found: re.Match[str]) -> str:
        number = int(found[1])  # from 1
        return batch[number - 1].place if 1 <= number <= len(batch) else found[0]

    return _ROW.sub(place, message)


def _show(
    task: Json, row: Mapping[str, Any], answer: Mapping[str, Any], *, named: bool, json: bool
) -> None:
    if json:
        output.print_json({"input": row, **answer})
        return
    if named:
        output.print_line(f"> {try_inputs.title(row)}")
    output.print_lines(try_answers.lines(task["type"], answer))


def _batches(inputs: Iterable[Input], size: int) -> Iterator[list[Input]]:
    given = iter(inputs)
    while batch := list(islice(given, size)):
        yield batch
