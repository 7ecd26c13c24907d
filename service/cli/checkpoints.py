"""`finetune checkpoints`: what a job has saved on its way."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli import output
from service.cli.client import Client, Json


def show_checkpoints(
    job_id: str,
    download: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Save this one as a tar archive instead."),
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder; made if it is missing.")] = Path(),
    json: output.AsJson = False,
) -> None:
    """A job's checkpoints by step, those that were removed to make room included."""
    with Client.from_environment() as client:
        if download is not None:
            _download(client, job_id, download, to, json=json)
            return
        rows = list(client.pages(f"/v1/jobs/{job_id}/checkpoints", cursor="step"))
    if json:
        output.print_json({"data": rows})
        return
    columns = ("step", "metric", "best", "bytes", "created_at", "pruned_at")
    output.print_table(columns, map(_row, rows))


def _row(checkpoint: Json) -> Json:
    times = {name: (checkpoint[name] or "")[:19] for name in ("created_at", "pruned_at")}
    return {**checkpoint, "best": "best" if checkpoint["best"] else "", **times}


def _download(client: Client, job_id: str, step: int, to: Path, *, json: bool) -> None:
    target = to / f"{job_id}-checkpoint-{step}.tar"
    client.download(f"/v1/jobs/{job_id}/checkpoints/{step}/archive", target)
    if json:
        output.print_json({"path": str(target), "bytes": target.stat().st_size})
    else:
        typer.echo(str(target))
