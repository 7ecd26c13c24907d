"""`finetune validate`: what the service would say about a spec, without making a job."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli import data_preview, ids, output, spec_check
from service.cli.client import Client, Json
from service.cli.exit_codes import OK, USAGE
from service.cli.local_files import AllowOutside
from service.cli.overrides import Changes, changed, merge_patch
from service.cli.spec_check import Checked
from service.cli.spec_file import read_spec
from service.cli.transfer import file_size


def validate(
    spec: Annotated[
        Path, typer.Argument(help="YAML or JSON.", exists=True, dir_okay=False, readable=True)
    ],
    changes: Changes = None,
    *,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Also read the rows as a job would: how many are usable, their lengths in tokens, "
            "two tokenised examples. Needs finetune-service[worker] here.",
        ),
    ] = False,
    rows: Annotated[
        int, typer.Option(min=1, help="With --data: read so many rows of each split.")
    ] = data_preview.ROWS,
    allow_outside: AllowOutside = False,
    json: output.AsJson = False,
) -> None:
    """Check a spec and its local files; nothing is uploaded, and no job is made.

    Exit status: 0 the spec is valid (there may be warnings), 2 it is not, or with --data a job
    would fail with these rows.
    """
    content = changed(read_spec(spec), merge_patch(changes or []))
    found: Json | None = None
    with Client.from_environment() as client:
        content = ids.in_spec(client.job_id, content)
        checked = spec_check.check(client, content, spec.parent, allow_outside=allow_outside)
        if data and checked.valid:
            found = data_preview.preview(client, checked, rows)
    failure = found["failure"] if found is not None else None
    if json:
        output.print_json(_answer(checked, found))
    else:
        _show(spec, checked, found)
    raise typer.Exit(USAGE if failure is not None or not checked.valid else OK)


def _show(spec: Path, checked: Checked, found: Json | None) -> None:
    spec_check.show_warnings({"warnings": checked.warnings, "ignored": checked.ignored})
    spec_check.refuse(checked.errors)
    output.print_line(f"{spec} is valid")
    for name, file in checked.files.items():
        output.print_line(f"  {name}: {file_size(file.size)}, uploaded by `finetune submit`")
    if found is None:
        return
    output.print_lines(data_preview.lines(found))
    if found["failure"] is not None:
        data_preview.show_failure(found["failure"])


def _answer(checked: Checked, found: Json | None) -> Json:
    """`data` is null without --data, and for a spec with errors."""
    return {"data": found, **checked.answer}
