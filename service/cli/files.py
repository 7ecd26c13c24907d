"""`finetune files`: the data sets that jobs are trained on."""

from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from finetune_client.http import calls

from service.cli.terminal import durations, output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError
from service.contract.spec.dataset import MAX_BAD_FRACTION

app = typer.Typer(no_args_is_help=True, help="Uploaded data sets.")


@app.command()
def upload(
    path: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)],
    purpose: str = "fine-tune",
    expires_after: Annotated[
        str | None,
        typer.Option(help="Remove it this long after the upload: 1h to 30d. Default: never."),
    ] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Upload a file; prints the id that a spec names in `dataset`."""
    lifetime = None if expires_after is None else durations.seconds(expires_after)
    with Client.from_environment() as client:
        uploaded = client.upload(path, purpose, expires_after=lifetime)
    output.print_answer(uploaded, uploaded["id"], as_json=json)


@app.command("list")
def list_files(*, json: output.AsJson = False) -> None:
    """All uploaded files."""
    with Client.from_environment() as client:
        files = list(client.pages("/v1/files"))
    columns = ("id", "filename", "bytes", "purpose", "expires")
    rows = ({**file, "expires": _expiry(file)} for file in files)
    output.print_rows({"data": files}, columns, rows, as_json=json)


def _expiry(file: Json) -> str | None:
    at = file.get("expires_at")
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


@app.command()
def check(
    file_id: str,
    task: Annotated[str, typer.Option(help="A task's name, or its JSON with parameters.")],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    format_: Annotated[str, typer.Option("--format", help="As in `dataset.format`.")] = "auto",
    column: Annotated[
        list[str] | None, typer.Option(help="The task's column and yours: context=passage.")
    ] = None,
    max_bad_fraction: float = MAX_BAD_FRACTION,
    *,
    json: output.AsJson = False,
) -> None:
    """Check a file's rows as a job would; exits with 1 if a job could not use the file as it is."""
    given = {
        "task": task,
        "split": split,
        "format": format_,
        "columns": dumps(dict(_column(each) for each in column or ())),
        "max_bad_fraction": max_bad_fraction,
    }
    with Client.from_environment() as client:
        found = client.send(calls.check_file(client.file_id(file_id), given))
    if json:
        output.print_json(found)
    else:
        _show(found)
    raise typer.Exit(0 if "fail" in found["usable_with"] else 1)


def _column(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals:
        raise UsageError(f"--column {text!r} is not <task's column>=<yours>")
    return ours, theirs


def _show(found: Json) -> None:
    part = "" if found["complete"] else " so far"
    output.print_line(
        f"{found['rows_read']:,} rows read{part}, {found['rows_usable']:,} usable, "
        f"{found['rows_bad']:,} not; {found['realigned']:,} answers realigned"
    )
    for reason, count in found["bad_by_reason"].items():
        output.print_line(f"  {reason}: {count:,}")
    if found["bad_rows"]:
        output.print_table(("place", "reason", "problem"), found["bad_rows"])
    if found["failure"]:
        output.print_line(f"{found['failure']['code']}: {found['failure']['message']}")
    elif found["usable_with"] == ["skip"]:
        output.print_line("A job can use it with `dataset.on_bad_row: skip`.")
    elif not found["usable_with"]:
        output.print_line("Too many rows are bad for `dataset.max_bad_fraction`.")


@app.command()
def delete(file_id: str, *, json: output.AsJson = False) -> None:
    """Delete a file."""
    with Client.from_environment() as client:
        deleted = client.change("DELETE", calls.file(client.file_id(file_id)))
    output.print_deleted(deleted, as_json=json)
