"""`finetune validate`: what the service would say about a spec, without making a job."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import typer

from service.cli.preview import command, page
from service.cli.spec import spec_check
from service.cli.spec.local_files import AllowOutside
from service.cli.spec.overrides import Changes
from service.cli.spec.spec_check import Force
from service.cli.spec.spec_file import SpecFile, read_spec
from service.cli.terminal import ids, output
from service.cli.terminal.client import Client, Json, UnreachableError
from service.cli.terminal.exit_codes import OK, USAGE
from service.contract.interactive.previews import MOST_ROWS

_SHOWN: Final = 2
_NOT_CHECKED: Final = (
    "No service answers, so the spec was checked here: not whether the files, jobs and secrets "
    "that it names exist, which folders it may name, nor the limits of a project."
)


def validate(
    spec: SpecFile,
    changes: Changes = None,
    *,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Also read the first rows as a job would; a worker does, as for `preview`.",
        ),
    ] = False,
    rows: Annotated[
        int,
        typer.Option(min=1, max=MOST_ROWS, help="With --data: read this many rows of each split."),
    ] = MOST_ROWS,
    allow_outside: AllowOutside = False,
    force: Force = False,
    json: output.AsJson = False,
) -> None:
    """Check a spec and its local files; no job is made, and nothing stays uploaded.

    Without --data no service is needed: where none answers, the spec is checked here.

    Exit status: 0 the spec is valid (there may be warnings), 2 it is not, or with --data a job
    would fail with these rows, 1 no worker has read them.
    """
    content = read_spec(spec, changes)
    found: Json | None = None
    try:
        with Client.from_environment() as client:
            checked = spec_check.check(
                client, content, spec.parent, allow_outside=allow_outside, force=force
            )
            if data and checked.valid:
                found = command.made(client, checked, rows, _SHOWN, force=force)
    except UnreachableError:
        if data:
            raise
        content = ids.in_spec(partial(ids.find_job, _one_job), content)
        checked = spec_check.check_by(_here, content, spec.parent, allow_outside=allow_outside)
        output.note(_NOT_CHECKED)
    if json:
        # null without --data, and for a spec with errors
        rows_ = None if found is None else {**(found["result"] or {}), "failure": found["failure"]}
        output.print_json({"data": rows_, **checked.answer})
    else:
        spec_check.show(spec, checked, "finetune submit")
        if found is not None:
            page.show(output.stdout(), found)
    if found is not None:
        raise typer.Exit(command.status(found))
    raise typer.Exit(OK if checked.valid else USAGE)


def _one_job(_path: str, query: Mapping[str, Any]) -> Json:
    """Answers like the list of jobs, as if one job had an id that begins like this: without the
    service it cannot be looked up."""
    whole = query["id_prefix"].ljust(len(ids.JOB.prefix) + ids.JOB.digits, "0")
    return {"data": [{"id": whole}], "has_more": False}


def _here(spec: Json, _pending: str | None) -> Json:
    """What the service says about the form of a spec."""
    # Only for this: the rules of a spec take a second to load.
    from service.api.faults.collect import collect
    from service.api.jobs.ignored_options import ignored

    return {
        "errors": [fault.model_dump(mode="json") for fault in collect(spec).faults],
        "ignored": [option.model_dump(mode="json") for option in ignored(spec)],
    }
