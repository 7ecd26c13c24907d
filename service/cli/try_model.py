"""`finetune try`: a finished model's answers to a few inputs, computed on this machine."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Annotated, Any, Final

import typer

from service.cli import finished_models, inference_process, output, try_answers, try_inputs
from service.cli.client import Client, Json
from service.cli.exit_codes import FAILED, UsageError
from service.contract.failures import Failure
from service.contract.inference import InferenceRequest

_TOGETHER: Final = 256
"""Rows of a file that are predicted at once."""


def try_model(
    job_id: str,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[INPUT]…", help="Texts or prompts.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="For question-answering.")] = None,
    context: Annotated[str | None, typer.Option(help="The passage with the answer.")] = None,
    text_pair: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="JSON lines, or one text a line; - is stdin."),
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="For causal-lm.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sample texts; 0: the likeliest tokens.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="For masked-lm: candidates.")] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N. GPUs belong to trainings by default.")
    ] = "cpu",
    *,
    json: output.AsJson = False,
) -> None:
    """Run the finished model of a job on inputs, on this machine.

    Without an input it asks for one, line by line. With --json: one line for each input.
    """
    inference_process.require_packages()
    use_gpu = inference_process.is_gpu(device)
    with ExitStack() as stack:
        client = stack.enter_context(Client.from_environment())
        job = client.get(f"/v1/jobs/{client.job_id(job_id)}")
        spec = job["spec"] | {
            "task": changed(job["spec"]["task"], max_new_tokens, temperature, top_k)
        }
        given = try_inputs.Given(inputs or [], question, context, text_pair, input_)
        source = try_inputs.source(spec["task"]["type"], given)
        found = finished_models.find(client, job)
        folder = stack.enter_context(inference_process.temporary_folder())
        request = InferenceRequest(
            spec=spec,
            model_dir=found.folder,
            base_model=found.base_model,
            folder=folder,
            cache_dir=found.cache_dir,
            use_gpu=use_gpu,
        )
        model = stack.enter_context(inference_process.Model(request, device))
        failed = _answer_all(model, spec["task"], source, json=json)
    raise typer.Exit(FAILED if failed else 0)


def changed(
    task: Json, max_new_tokens: int | None, temperature: float | None, top_k: int | None
) -> Json:
    """The job's `task` with the options of this call; UsageError if it has no such option."""
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
        samples = {"do_sample": True, "temperature": temperature} if temperature > 0 else {}
        changes["generation"] = {**task["generation"], **(samples or {"do_sample": False})}
    return {**task, **changes}


def _answer_all(
    model: inference_process.Model, task: Json, source: try_inputs.Source, *, json: bool
) -> bool:
    """Whether some input could not be used. An interactive user may give another one."""
    failed = False
    for rows in _batches(source.rows, 1 if source.is_interactive else _TOGETHER):
        answers = model.answer(rows)
        for notice in answers.notices:
            output.note(notice)
        if answers.failure is not None:
            failed = True
            _complain(answers.failure)
            if not source.is_interactive:
                break
        several = not source.is_interactive and (len(rows) > 1 or failed)
        for row, answer in zip(rows, answers.answers, strict=False):
            _show(task, row, answer, named=several, json=json)
    return failed and not source.is_interactive


def _complain(failure: Failure) -> None:
    output.complain(failure.message)


def _show(
    task: Json, row: Mapping[str, Any], answer: Mapping[str, Any], *, named: bool, json: bool
) -> None:
    if json:
        output.print_json({"input": row, **answer})
        return
    if named:
        typer.echo(f"> {try_inputs.title(row)}")
    for line in try_answers.lines(task["type"], answer):
        typer.echo(line)
    sys.stdout.flush()


def _batches(rows: Iterable[Json], size: int) -> Iterator[list[Json]]:
    given = iter(rows)
    while batch := list(islice(given, size)):
        yield batch
