"""`finetune search submit|validate`: check a search, upload its template's files, make it."""

import uuid
from pathlib import Path
from typing import Annotated, Final

import typer
from finetune_client.http import calls

from service.cli.jobs.submit import create, show_submitted
from service.cli.search.watch import watch as watch_search
from service.cli.spec import spec_check
from service.cli.spec.local_files import AllowOutside
from service.cli.spec.overrides import Changes
from service.cli.spec.spec_check import Checked, Force
from service.cli.spec.spec_file import SpecFile, read_spec
from service.cli.terminal import ids, output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import OK, USAGE

_TEMPLATE: Final = "job"
_SECTIONS: Final = "`job`, the spec of its trials, and `space`"


def submit(
    spec: SpecFile,
    changes: Changes = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the search to its end.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="The same key and spec again give the same search. Default: a new one."),
    ] = None,
    allow_outside: AllowOutside = False,
    force: Force = False,
    json: output.AsJson = False,
) -> None:
    """Make a search. Files that its `job` names as ./name are uploaded, once the spec is valid."""
    content = read_spec(spec, changes, _SECTIONS)
    key = idempotency_key or str(uuid.uuid4())
    with Client.from_environment() as client:
        checked = _check(client, content, spec.parent, allow_outside=allow_outside, force=force)
        spec_check.refuse(checked.errors)

        def post(template: Json) -> Json:
            whole = {**content, _TEMPLATE: template}
            return client.send(calls.create_search(whole, key, force=force))

        search = create(client, checked, post, ids.SEARCH, key)
        show_submitted(client, search, watch_search if watch else None, json=json)


def validate(
    spec: SpecFile,
    changes: Changes = None,
    *,
    allow_outside: AllowOutside = False,
    force: Force = False,
    json: output.AsJson = False,
) -> None:
    """Check a search and its local files; nothing is uploaded, and no search is made.

    Exit status: 0 the spec is valid (there may be warnings), 2 it is not.
    """
    content = read_spec(spec, changes, _SECTIONS)
    with Client.from_environment() as client:
        checked = _check(client, content, spec.parent, allow_outside=allow_outside, force=force)
    if json:
        # The template as it was given: its files have no ids yet.
        filled = checked.filled and {**checked.filled, _TEMPLATE: checked.spec}
        output.print_json({"spec": filled, **checked.answer})
        raise typer.Exit(OK if checked.valid else USAGE)
    spec_check.show(spec, checked, "finetune search submit")


def _check(
    client: Client, search: Json, folder: Path, *, allow_outside: bool, force: bool
) -> Checked:
    template = search.get(_TEMPLATE)
    spec = ids.in_spec(client.job_id, template) if isinstance(template, dict) else {}

    def ask(checked: Json, pending_file: str | None) -> Json:
        whole = {**search, _TEMPLATE: checked} if isinstance(template, dict) else search
        return client.send(calls.validate_search(whole, pending_file, force=force))

    place = f"{_TEMPLATE}."
    return spec_check.check_by(ask, spec, folder, allow_outside=allow_outside, place=place)
