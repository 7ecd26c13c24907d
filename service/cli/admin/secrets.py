"""`finetune secrets`: tokens that a project's jobs use. No value is shown, or part of a command."""

import sys
from typing import Annotated

import typer
from finetune_client.http import calls

from service.cli.terminal import local_database, output
from service.cli.terminal.client import Client
from service.cli.terminal.exit_codes import UsageError
from service.settings import get_settings
from service.store.projects import secrets
from service.store.webhooks import endpoints
from service.system.secret_box import SecretBox, SecretUnreadableError

app = typer.Typer(no_args_is_help=True, help="Secrets of the project, for its jobs.")

Name = Annotated[str, typer.Argument(help="Letters in lower case, digits, `-`, `_` and `.`.")]


@app.command("set")
def set_secret(name: Name, *, json: output.AsJson = False) -> None:
    """Set a secret, or replace its value: asks for it, or reads it from standard input."""
    if sys.stdin.isatty():
        value = str(typer.prompt("Value", hide_input=True))
    else:
        value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise UsageError("no value was given: type it, or send it through a pipe")
    with Client.from_environment() as client:
        made = client.send(calls.set_secret(name, value))
    output.print_answer(made, f"{made['name']} is set", as_json=json)


@app.command("list")
def list_secrets(*, json: output.AsJson = False) -> None:
    """Names and times of all secrets, without their values."""
    with Client.from_environment() as client:
        found = client.get("/v1/secrets")
    output.print_rows(
        {"data": found["data"]},
        ("name", "project", "created_at", "updated_at"),
        found["data"],
        as_json=json,
    )


@app.command()
def remove(name: Name, *, json: output.AsJson = False) -> None:
    """Delete a secret. Jobs that still need it end as `secret_unavailable`."""
    with Client.from_environment() as client:
        deleted = client.send(calls.delete_secret(name))
    output.print_answer(deleted, f"{deleted['name']} is deleted", as_json=json)


@app.command("rotate-key")
def rotate_key(*, json: output.AsJson = False) -> None:
    """Make a new key, and encrypt all secrets with it; on the service's machine.

    Works on the database and on the key file itself. Copy the file to the other hosts before and
    after: both keys are in it until the last secret is encrypted anew.
    """
    box = SecretBox(get_settings().secrets_file)
    try:
        with local_database.opened() as database:
            box.add_key()
            with database.write() as session:
                # Those of the projects first: they lock the projects, as each new secret does.
                count = secrets.seal_again(session, box.seal_again)
                count += endpoints.seal_again(session, box.seal_again)
                local_database.note(session, "rotate_secrets_key")
            box.forget_old_keys()
    except SecretUnreadableError as error:
        raise UsageError(str(error)) from error
    output.print_answer(
        {"secrets": count}, f"{count} secrets are encrypted with a new key", as_json=json
    )
