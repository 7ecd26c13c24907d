"""`finetune preview`: what a job would make of the first rows, made by a worker of the service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from finetune_client import calls

from service.cli import local_files, output, preview_page, spec_check, submit, waiting
from service.cli.client import Client, Json
from service.cli.exit_codes import FAILED, OK, USAGE
from service.cli.local_files import AllowOutside
from service.cli.overrides import Changes
from service.cli.spec_check import Checked
from service.cli.spec_file import SpecFile, read_spec
from service.contract.previews import DEFAULT_ROWS, DEFAULT_SHOWN, MOST_ROWS, MOST_SHOWN


def preview(
    spec: SpecFile,
    changes: Changes = None,
    *,
    rows: Annotated[
        int, typer.Option(min=1, max=MOST_ROWS, help="Read so many rows of each split.")
    ] = DEFAULT_ROWS,
    shown: Annotated[
        int, typer.Option(min=0, max=MOST_SHOWN, help="Show so many examples in full.")
    ] = DEFAULT_SHOWN,
    allow_outside: AllowOutside = False,
    json: output.AsJson = False,
) -> None:
    """See the first rows as the model will see them: text, tokens, and which of them are trained.

    A worker of the service reads and tokenizes them; no job is made. Files that the spec names as
    ./name are uploaded for it, and removed again. Exit status: 0 a job could use these rows, 2 it
    would fail, 1 there is no preview.
    """
    content = read_spec(spec, changes)
    with Client.from_environment() as client:
        checked = spec_check.check(client, content, spec.parent, allow_outside=allow_outside)
        spec_check.show_warnings(checked.answer)
        spec_check.refuse(checked.errors)
        found = made(client, checked, rows, shown)
    if json:
        output.print_json(found)
    else:
        preview_page.show(output.stdout(), found)
    raise typer.Exit(status(found))


def status(found: Json) -> int:
    if found["failure"] is None:
        return OK
    return FAILED if found["result"] is None else USAGE


def made(client: Client, checked: Checked, rows: int, shown: int) -> Json:
    """The preview of a valid spec, once it has ended."""
    with _uploaded(client, checked) as ready:
        begun = client.send(calls.preview_job(ready, {"rows": rows, "shown": shown}))
        return waiting.ended(client, begun, "/v1/previews")


@contextmanager
def _uploaded(client: Client, checked: Checked) -> Iterator[Json]:
    """The spec with the ids of its files. What was uploaded for it is removed at the end."""
    known = spec_check.uploaded_before(client, checked)
    made: dict[str, str] = {}
    try:
        for name, content in checked.files.items():
            if name not in known:
                made[name] = submit.upload(client, checked.folder / name, content.size)
        yield local_files.replaced(checked.spec, {**known, **made})
    finally:
        submit.remove(client, made.values())
