"""`finetune submit`: check a spec, upload its local files, make the job."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final, Protocol

import typer
from finetune_client.http import calls

from service.cli.jobs.watch import watch as watch_job
from service.cli.spec import local_files, spec_check, uploads
from service.cli.spec.local_files import AllowOutside
from service.cli.spec.overrides import Changes
from service.cli.spec.spec_check import Checked, Force
from service.cli.spec.spec_file import SpecFile, read_spec
from service.cli.terminal import output
from service.cli.terminal.client import ApiError, Client, Json
from service.cli.terminal.ids import JOB, Kind

_IN_FLIGHT: Final = "idempotency_in_flight"
_MISSING_FILE: Final = ("data_gone", "invalid_spec")


class Watch(Protocol):
    """`watch.watch` and `search.watch.watch`."""

    def __call__(self, client: Client, item_id: str, /, *, json: bool) -> int: ...


Post = Callable[[Json], Json]
"""Makes something of a spec whose files were uploaded."""


def submit(
    spec: SpecFile,
    changes: Changes = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job to its end.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="The same key and spec again give the same job. Default: a new one."),
    ] = None,
    allow_outside: AllowOutside = False,
    force: Force = False,
    json: output.AsJson = False,
) -> None:
    """Make a job. Files that the spec names as ./name are uploaded, once the spec is valid."""
    content = read_spec(spec, changes)
    key = idempotency_key or str(uuid.uuid4())
    with Client.from_environment() as client:
        checked = spec_check.check(
            client, content, spec.parent, allow_outside=allow_outside, force=force
        )
        spec_check.refuse(checked.errors)

        def post(ready: Json) -> Json:
            return client.send(calls.create_job(ready, key, force=force))

        job = create(client, checked, post, JOB, key)
        show_submitted(client, job, watch_job if watch else None, json=json)


def show_submitted(client: Client, made: Json, watch: Watch | None, *, json: bool) -> None:
    """Print the id of the new job or search, or follow it; raises typer.Exit with how it ended
    then."""
    spec_check.show_warnings(made)
    if json:
        output.print_json(made)
    elif watch is None:
        output.print_line(made["id"])
    else:
        output.note(f"submitted {made['id']}")
    if watch is not None:
        raise typer.Exit(watch(client, made["id"], json=json))


def create(client: Client, checked: Checked, post: Post, kind: Kind, key: str) -> Json:
    """The new job or search. What was uploaded for it is removed if the service refuses it."""
    known = spec_check.uploaded_before(client, checked)
    try:
        return _upload_and_post(client, checked, known, post, kind, key)
    except ApiError as error:
        # Another command may have deleted a file that this job wanted to share: another submit that
        # was refused, for example.
        if error.code not in _MISSING_FILE or not known:
            raise
        now = spec_check.uploaded_before(client, checked)
        if now == known:
            raise
        return _upload_and_post(client, checked, now, post, kind, key)


def _upload_and_post(
    client: Client, checked: Checked, known: Mapping[str, str], post: Post, kind: Kind, key: str
) -> Json:
    made: dict[str, str] = {}
    posting = False
    try:
        for name, content in checked.files.items():
            if name not in known:
                made[name] = uploads.upload(client, checked.folder / name, content.size)
        spec = local_files.replaced(checked.spec, {**known, **made})
        posting = True
        return post(spec)
    except BaseException as error:
        if posting and not _is_refusal(error):
            _say_unknown(made.values(), kind, key)
        else:
            uploads.remove(client, made.values())
        raise


def _is_refusal(error: BaseException) -> bool:
    """Whether the service certainly made nothing: it answered, and not with a fault of its own."""
    return isinstance(error, ApiError) and error.status < 500 and error.code != _IN_FLIGHT


def _say_unknown(file_ids: Iterable[str], kind: Kind, key: str) -> None:
    """After a lost answer: the job or search may exist, and may need the files."""
    files = ", ".join(file_ids)
    kept = f" Uploaded files were kept: {files}." if files else ""
    output.note(
        f"The {kind.noun} may have been made: see `{kind.listing}`.{kept} The same command with "
        f"`--idempotency-key {key}` makes no second {kind.noun}."
    )
