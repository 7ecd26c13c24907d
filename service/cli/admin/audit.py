"""`finetune audit`: who did what."""

import json as json_text
from itertools import islice
from typing import Annotated

import typer

from service.cli.terminal import output
from service.cli.terminal.client import Client

_COLUMNS = ("at", "key_name", "action", "target", "outcome", "client")


def show_audit(
    action: Annotated[str | None, typer.Option(help="One operation, such as create_job.")] = None,
    target: Annotated[
        str | None, typer.Option(help="What it was done to, such as a job id.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="A time (RFC 3339).")] = None,
    until: Annotated[str | None, typer.Option(help="A time (RFC 3339).")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries to show; not with --jsonl.")] = 50,
    *,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="All entries, one JSON object a line.")
    ] = False,
) -> None:
    """The audit log, the newest entries first."""
    given = {"action": action, "target": target, "since": since, "until": until}
    wanted = {name: value for name, value in given.items() if value}
    with Client.from_environment() as client:
        entries = client.pages("/v1/audit", params=wanted)
        if jsonl:
            for entry in entries:
                output.print_line(json_text.dumps(entry))
        else:
            output.print_table(_COLUMNS, list(islice(entries, limit)))
