"""`finetune preview`: what a job would make of the first rows, made by a worker of the service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from finetune_client.http import calls

from service.cli.preview import page
from service.cli.spec import local_files, spec_check, uploads
from service.cli.spec.local_files import AllowOutside
from service.cli.spec.overrides import Changes
from service.cli.spec.spec_check import Checked, Force
from service.cli.spec.spec_file import SpecFile, read_spec
from service.cli.terminal import output, wait_reasons
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import FAILED, OK, USAGE
from service.contract.interactive.previews import DEFAULT_ROWS, DEFAULT_SHOWN, MOST_ROWS, MOST_SHOWN


def preview(
    spec: SpecFile,
    changes: Changes = None,
    *,
    rows: Annotated[
        int, typer.Option(min=1, max=MOST_ROWS, help="Read this many rows of each split.")
    ] = DEFAULT_ROWS,
    shown: Annotated[
        int, typer.Option(min=0, max=MOST_SHOWN, help="Show this many examples in full.")
    ] = DEFAULT_SHOWN,
    allow_outside: AllowOutside = False,
    force: Force = False,
    json: output.AsJson = False,
) -> None:
    """See the first rows as the model will see them: text, tokens, and which of them are trained.

    A worker of the service reads and tokenizes them; no job is made. Files that the spec names as
    ./name are uploaded for it, and removed again. Exit status: 0 a job could use these rows, 2 it
    would fail, 1 there is no preview.
    """
    content = read_spec(spec, changes)
    with Client.from_environment() as client:
        checked = spec_check.check(
            client, content, spec.parent, allow_outside=allow_outside, force=force
        )
        spec_check.show_warnings(checked.answer)
        spec_check.refuse(checked.errors)
        found = made(client, checked, rows, shown, force=force)
    if json:
        output.print_json(found)
    else:
        page.show(output.stdout(), found)
    raise typer.Exit(status(found))


def status(found: Json) -> int:
    if found["failure"] is None:
        return OK
    return FAILED if found["result"] is None else USAGE


def made(client: Client, checked: Checked, rows: int, shown: int, *, force: bool) -> Json:
    """The preview of a valid spec, once it has ended."""
    params = {"rows": rows, "shown": shown, **calls.forced(force)}
    with _uploaded(client, checked) as ready:
        begun = client.send(calls.preview_job(ready, params))
        return wait_reasons.ended(client, begun, "/v1/previews")


@contextmanager
def _uploaded(client: Client, checked: Checked) -> Iterator[Json]:
    """The spec with the ids of its files. What was uploaded for it is removed at the end."""
    known = spec_check.uploaded_before(client, checked)
    made: dict[str, str] = {}
    try:
        for name, content in checked.files.items():
            if name not in known:
                made[name] = uploads.upload(client, checked.folder / name, content.size)
        yield local_files.replaced(checked.spec, {**known, **made})
    finally:
        uploads.remove(client, made.values())
