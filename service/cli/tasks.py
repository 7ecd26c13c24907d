"""`finetune tasks`: what a model can be trained for, and what data each task needs."""

from collections.abc import Iterator
from difflib import get_close_matches
from json import dumps
from typing import Annotated, Any

import typer

from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError
from service.cli.terminal.layout import labelled


def show_tasks(
    name: Annotated[
        str | None, typer.Argument(help="One task, with its columns and parameters.")
    ] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """The tasks: their columns and metrics; with a name also the parameters of that task."""
    with Client.from_environment() as client:
        found = client.get("/v1/tasks")
    tasks = {task["type"]: task for task in found["data"]}
    if name is not None and name not in tasks:
        near = get_close_matches(name, tasks, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(tasks)}"
        raise UsageError(f"there is no task {name!r}: {hint}")
    if json:
        output.print_json(found if name is None else tasks[name])
    elif name is not None:
        output.print_lines(_in_detail(tasks[name]))
    else:
        for task in tasks.values():
            output.print_lines(_in_brief(task))
        output.note("[column]: optional. `finetune tasks NAME` shows the parameters.")


def _in_brief(task: Json) -> Iterator[str]:
    yield task["type"]
    columns = [
        column["name"] if column["required"] else f"[{column['name']}]"
        for column in task["columns"]
    ]
    rows = [("does", task["title"]), ("columns", ", ".join(columns))]
    yield from labelled([*rows, ("metrics", ", ".join(task["metrics"]))])


def _in_detail(task: Json) -> Iterator[str]:
    yield f"{task['type']}: {task['title']}"
    yield ""
    yield "Columns (`dataset.columns` maps yours)"
    yield from labelled(
        (column["name"], f"{column['description']}{'' if column['required'] else ' Optional.'}")
        for column in task["columns"]
    )
    yield ""
    yield "Metrics (each may be `training.metric_for_best_model`)"
    yield from labelled([("eval", ", ".join(task["metrics"]))])
    yield ""
    yield "Parameters (`task`, each with its default)"
    yield from labelled(_parameters(task))


def _parameters(task: Json) -> Iterator[tuple[str, str]]:
    for name, schema in task["parameters_schema"].get("properties", {}).items():
        if name == "type":
            continue
        value = task["defaults"].get(name)
        if isinstance(value, dict):  # a section: what is null in it is left to the model
            value = {key: item for key, item in value.items() if item is not None}
        default = dumps(value, ensure_ascii=False)
        about = _about(schema)
        yield name, f"{default}{': ' if about else ''}{about}"


def _about(schema: Any) -> str:
    """The description; the values, where there are few."""
    text = str(schema.get("description") or "")
    values = schema.get("enum") or [
        value for choice in schema.get("anyOf", ()) for value in choice.get("enum", ())
    ]
    return f"{text} One of {', '.join(map(str, values))}.".strip() if values else text
