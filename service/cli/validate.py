"""`finetune validate`: what the service would say about a spec, without making a job."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli import ids, output, spec_check
from service.cli.client import Client, Json
from service.cli.exit_codes import OK, USAGE
from service.cli.overrides import Changes, changed, merge_patch
from service.cli.spec_check import Checked
from service.cli.spec_file import read_spec
from service.cli.transfer import megabytes


def validate(
    spec: Annotated[
        Path, typer.Argument(help="YAML or JSON.", exists=True, dir_okay=False, readable=True)
    ],
    changes: Changes = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Check a spec and its local files; nothing is uploaded, and no job is made.

    Exit status: 0 the spec is valid (there may be warnings), 2 it is not.
    """
    content = changed(read_spec(spec), merge_patch(changes or []))
    with Client.from_environment() as client:
        content = ids.in_spec(client.job_id, content)
        checked = spec_check.check(client, content, spec.parent)
    if json:
        output.print_json(_answer(checked))
        raise typer.Exit(OK if checked.valid else USAGE)
    spec_check.show_warnings({"warnings": checked.warnings, "ignored": checked.ignored})
    spec_check.refuse(checked.errors)
    typer.echo(f"{spec} is valid")
    for name, file in checked.files.items():
        typer.echo(f"  {name}: {megabytes(file.size)}, uploaded by `finetune submit`")


def _answer(checked: Checked) -> Json:
    return {
        "valid": checked.valid,
        "errors": checked.errors,
        "warnings": checked.warnings,
        "ignored": checked.ignored,
        "files": [
            {"name": name, "bytes": file.size, "sha256": file.sha256}
            for name, file in checked.files.items()
        ],
    }
