"""`finetune files`: the data sets that jobs are trained on."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli import output
from service.cli.client import Client

app = typer.Typer(no_args_is_help=True, help="Uploaded data sets.")


@app.command()
def upload(
    path: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)],
    purpose: str = "fine-tune",
    json: output.AsJson = False,
) -> None:
    """Upload a file; prints the id that a spec names in `dataset`."""
    with Client.from_environment() as client:
        uploaded = client.upload(path, purpose)
    if json:
        output.print_json(uploaded)
    else:
        typer.echo(uploaded["id"])


@app.command("list")
def list_files(json: output.AsJson = False) -> None:
    """All uploaded files."""
    with Client.from_environment() as client:
        files = list(client.pages("/v1/files"))
    if json:
        output.print_json({"data": files})
    else:
        output.print_table(("id", "filename", "bytes", "purpose"), files)


@app.command()
def delete(file_id: str, json: output.AsJson = False) -> None:
    """Delete a file."""
    with Client.from_environment() as client:
        deleted = client.delete_file(file_id)
    if json:
        output.print_json(deleted)
    else:
        typer.echo(f"{file_id} is deleted")
