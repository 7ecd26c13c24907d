"""The table of commands, and how each of them ends."""

import sys
from collections.abc import Callable
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated

import typer
from pydantic import ValidationError
from sqlalchemy.exc import DatabaseError

from service.cli import docs, files, tasks
from service.cli.admin import audit, keys, login, projects, secrets, usage, webhooks, workers
from service.cli.convert.command import convert_command
from service.cli.jobs import actions, checkpoints, listing, logs, submit, validate, watch
from service.cli.models import download, try_model
from service.cli.preview import command
from service.cli.search import commands as search
from service.cli.servers import doctor, servers, up
from service.cli.terminal import output
from service.cli.terminal.client import GIVEN_PROJECT, ApiError, UnreachableError
from service.cli.terminal.exit_codes import UNREACHABLE, USAGE, UsageError
from service.contract.fields import patterns
from service.settings import get_settings
from service.store.database_faults import described, is_unusable
from service.store.schema import UnusableSchemaError

_SERVERS = "Run the service"
_CLIENT = "Use the service"
_KEY_HINT = (
    "Set FINETUNE_API_KEY to a key of this service. The key that `finetune up` made is sent only "
    "to the service that runs from the same FINETUNE_HOME."
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Fine-tune models on your own machines.",
    epilog="Exit statuses: 0 ok, 1 the job failed, 2 wrong usage or spec, 3 the service cannot be "
    "reached, 130 interrupted. FINETUNE_URL and FINETUNE_API_KEY say which service to talk to.",
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        output.print_line(f"finetune {version('finetune-service')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Show the version.", is_eager=True, callback=_show_version
        ),
    ] = False,
    project: Annotated[
        str | None,
        typer.Option(help="Act in this project (name or id); also FINETUNE_PROJECT."),
    ] = None,
) -> None:
    del show_version
    GIVEN_PROJECT.set(project)


_CLIENT_COMMANDS: dict[str, Callable[..., None]] = {
    "submit": submit.submit,
    "validate": validate.validate,
    "preview": command.preview,
    "convert": convert_command,
    "watch": watch.watch_command,
    "list": listing.list_jobs,
    "get": listing.get_job,
    "pause": actions.pause_job,
    "resume": actions.resume_job,
    "cancel": actions.cancel_job,
    "retry": actions.retry_job,
    "clone": actions.clone_job,
    "delete": actions.delete_job,
    "logs": logs.show_logs,
    "events": logs.show_events,
    "download": download.download,
    "try": try_model.try_model,
    "checkpoints": checkpoints.show_checkpoints,
    "promote": checkpoints.promote_checkpoint,
    "publish": checkpoints.publish_job,
    "workers": workers.show_workers,
    "usage": usage.show_usage,
    "audit": audit.show_audit,
    "tasks": tasks.show_tasks,
    "docs": docs.docs,
    "login": login.login,
}
_SERVER_COMMANDS: dict[str, Callable[..., None]] = {
    "up": up.up,
    "api": servers.api,
    "reconciler": servers.reconciler,
    "migrate": servers.migrate,
    "doctor": doctor.doctor,
}
for _name, _command in _CLIENT_COMMANDS.items():
    app.command(_name, rich_help_panel=_CLIENT)(_command)
app.add_typer(files.app, name="files", rich_help_panel=_CLIENT)
app.add_typer(projects.app, name="projects", rich_help_panel=_CLIENT)
app.add_typer(projects.members_app, name="members", rich_help_panel=_CLIENT)
app.add_typer(search.app, name="search", rich_help_panel=_CLIENT)
app.add_typer(secrets.app, name="secrets", rich_help_panel=_CLIENT)
app.add_typer(webhooks.app, name="webhooks", rich_help_panel=_CLIENT)
for _name, _command in _SERVER_COMMANDS.items():
    app.command(_name, rich_help_panel=_SERVERS)(_command)
app.command(
    "worker",
    rich_help_panel=_SERVERS,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(servers.worker)
app.add_typer(keys.app, name="keys", rich_help_panel=_SERVERS)


def main() -> None:
    """The `finetune` command."""
    try:
        app()
    except ApiError as error:
        output.show_problem(error.problem)
        if error.status == HTTPStatus.UNAUTHORIZED:
            output.note(_KEY_HINT)
        sys.exit(UNREACHABLE if error.status >= 500 else USAGE)
    except UnreachableError as error:
        output.complain(str(error))
        sys.exit(UNREACHABLE)
    except DatabaseError as error:
        if not is_unusable(error):
            raise
        output.complain(described(get_settings().sqlalchemy_url, error))
        sys.exit(UNREACHABLE)
    except (UsageError, UnusableSchemaError) as error:
        output.complain(str(error))
        sys.exit(USAGE)
    except ValidationError as error:
        # Without the values: some settings are secrets.
        for fault in error.errors(include_input=False, include_url=False):
            name = "_".join(str(part) for part in fault["loc"]).upper()
            words = patterns.WORDS.get(fault.get("ctx", {}).get("pattern", ""))
            message = f"must be {words}" if words else fault["msg"]
            output.complain(f"FINETUNE_{name}: {message}")
        sys.exit(USAGE)
