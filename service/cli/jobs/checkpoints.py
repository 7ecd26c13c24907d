"""`finetune checkpoints|promote|publish`: a job's checkpoints and its model."""

from pathlib import Path
from typing import Annotated

import typer
from finetune_client.http import calls

from service.cli.models import checkpoint_model, whole_folder
from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError


def show_checkpoints(
    job_id: str,
    download: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Save this one as a tar archive instead."),
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder; made if it is missing.")] = Path(),
    *,
    json: output.AsJson = False,
) -> None:
    """List a job's checkpoints by step, including those that were removed."""
    with Client.from_environment() as client:
        job_id = client.job_id(job_id)
        if download is not None:
            _download(client, job_id, download, to, json=json)
            return
        rows = list(client.pages(f"/v1/jobs/{job_id}/checkpoints", cursor="step"))
    columns = ("step", "metric", "best", "bytes", "created_at", "pruned_at")
    output.print_rows({"data": rows}, columns, map(_row, rows), as_json=json)


def _row(checkpoint: Json) -> Json:
    times = {name: (checkpoint[name] or "")[:19] for name in ("created_at", "pruned_at")}
    return {**checkpoint, "best": "best" if checkpoint["best"] else "", **times}


def _download(client: Client, job_id: str, step: int, to: Path, *, json: bool) -> None:
    target = to / f"{job_id}-checkpoint-{step}.tar"
    with whole_folder.writable(to):
        client.download(f"/v1/jobs/{job_id}/checkpoints/{step}/archive", target)
    output.print_answer(
        {"path": str(target), "bytes": target.stat().st_size}, str(target), as_json=json
    )


def promote_checkpoint(
    job_id: str,
    step: Annotated[
        int | None, typer.Argument(help="Not needed after the name of a checkpoint.")
    ] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Make a checkpoint the model of an ended job, and publish it as before."""
    with Client.from_environment() as client:
        named = client.model(job_id)
        wanted = checkpoint_model.step_of(named, None if step is None else str(step))
        if wanted is None:
            raise UsageError(f"which checkpoint? `finetune checkpoints {named.job_id}` lists them")
        promoted = client.send(calls.promote(named.job_id, int(wanted)))
    output.print_state(promoted, as_json=json)


def publish_job(
    job_id: str,
    model_id: Annotated[str, typer.Option(help="Repository on the Hub, for example org/name.")],
    *,
    public: Annotated[
        bool, typer.Option("--public", help="If the push creates the repository.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch; default: main.")] = None,
    commit_message: str | None = None,
    license_: Annotated[
        str | None, typer.Option("--license", help="Licence id for the model card.")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Push the finished model of an ended job, to another repository if you like."""
    wanted = {
        "model_id": model_id,
        "private": not public,
        "revision": revision,
        "commit_message": commit_message,
        "license": license_,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    with Client.from_environment() as client:
        published = client.send(calls.publish_job(client.job_id(job_id), given))
    output.print_state(published, as_json=json)
