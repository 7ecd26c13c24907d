"""`finetune submit`: read a spec, upload its local files, make the job."""

import hashlib
import json as jsonlib
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli import ids, output
from service.cli.client import Client, Json
from service.cli.exit_codes import UsageError
from service.cli.overrides import Changes, changed, merge_patch
from service.cli.watch import watch as watch_job
from service.contract import spec_yaml

_SPLITS = ("train", "validation", "test")
_LOCAL = ("./", "../")
"""How a spec names a file to upload first, relative to itself; an id of an upload never does."""


def submit(
    spec: Annotated[
        Path, typer.Argument(help="YAML or JSON.", exists=True, dir_okay=False, readable=True)
    ],
    changes: Changes = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job to its end.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="The same key and spec again give the same job. Default: a new one."),
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Make a job. Files that the spec names as ./name are uploaded first."""
    content = changed(read_spec(spec), merge_patch(changes or []))
    with Client.from_environment() as client:
        content = ids.in_spec(client.job_id, content)
        content = upload_files(client, content, spec.parent)
        job = client.submit(content, idempotency_key or str(uuid.uuid4()))
        show_submitted(client, job, watch=watch, json=json)


def show_submitted(client: Client, job: Json, *, watch: bool, json: bool) -> None:
    """Print the new job's id, or follow it; raises typer.Exit with how it ended then."""
    if ignored := [option["path"] for option in job.get("ignored", ())]:
        output.note(f"at their defaults, and ignored: {', '.join(ignored)}")
    if json:
        output.print_json(job)
    elif not watch:
        typer.echo(job["id"])
    else:
        output.note(f"submitted {job['id']}")
    if watch:
        raise typer.Exit(watch_job(client, job["id"], json=json))


def read_spec(path: Path) -> Json:
    """Raises UsageError with the line where a file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = jsonlib.loads(text) if path.suffix == ".json" else spec_yaml.parse(text)
    except ValueError as error:  # not UTF-8, not JSON, not YAML
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold one mapping with `task`, `model` and `dataset`")
    return content


def upload_files(client: Client, spec: Json, folder: Path) -> Json:
    """The spec with ids of uploads in place of local files; others stay as they are."""
    dataset = spec.get("dataset")
    if not isinstance(dataset, dict) or dataset.get("source") != "upload":
        return spec
    replaced = {
        split: _upload_all(client, dataset[split], folder) for split in _SPLITS if split in dataset
    }
    return {**spec, "dataset": {**dataset, **replaced}}


def _upload_all(client: Client, value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_upload_all(client, item, folder) for item in value]
    if isinstance(value, dict):  # several validation sets by name
        return {name: _upload_all(client, item, folder) for name, item in value.items()}
    if isinstance(value, str) and value.startswith(_LOCAL):
        return _upload_once(client, folder / value)
    return value


def _upload_once(client: Client, path: Path) -> str:
    """Id of an upload with this content; one that is there already is used again."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    for known in client.pages("/v1/files"):
        if known["sha256"] == digest and known["filename"] == path.name:
            return str(known["id"])
    uploaded = client.upload(path, "fine-tune")
    output.note(f"uploaded {path} as {uploaded['id']}")
    return str(uploaded["id"])
