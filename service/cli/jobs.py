"""`finetune list|get|logs|events|download`: show jobs and what they made."""

import time
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import quote

import typer

from service.cli import output
from service.cli.client import Client, Json
from service.cli.exit_codes import UsageError
from service.cli.watch import line, show_result
from service.contract.states import ENDED, JobState

FOLLOW_SECONDS = 1.0


def list_jobs(
    state: Annotated[
        list[JobState] | None, typer.Option(help="May be given several times.")
    ] = None,
    task: str | None = None,
    name: str | None = None,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    after: Annotated[str | None, typer.Option(help="Start after this job id.")] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Jobs, the newest first."""
    wanted = {
        "state": [item.value for item in state or []],
        "task": task,
        "name": name,
        "after": after,
    }
    given = {key: value for key, value in wanted.items() if value}
    with Client.from_environment() as client:
        page = client.get("/v1/jobs", {"limit": limit, **given})
    if json:
        output.print_json(page)
        return
    columns = ("id", "name", "state", "stage", "percent", "created_at")
    output.print_table(columns, (_row(job) for job in page["data"]))
    if page["has_more"]:
        output.note(f"there are more: --after {page['data'][-1]['id']}")


def _row(job: Json) -> Json:
    progress = job["progress"] or {}
    return {**job, "percent": progress.get("percent"), "created_at": job["created_at"][:19]}


def get_job(job_id: str, *, json: output.AsJson = False) -> None:
    """Show one job."""
    with Client.from_environment() as client:
        job = client.get(f"/v1/jobs/{client.job_id(job_id)}")
    if json:
        output.print_json(job)
        return
    if job["state"] not in ENDED:
        typer.echo(line(job))
    show_result(job)


def show_logs(
    job_id: str,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the job has ended.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """The job's log. With --json: its parts as they were read, one line each."""
    offset = 0
    with Client.from_environment() as client:
        job_id = client.job_id(job_id)
        while True:
            part = client.get(f"/v1/jobs/{job_id}/logs", {"offset": offset})
            if part["content"]:
                _show_part(part, json=json)
            offset = part["next_offset"]
            if offset < part["size"]:
                continue
            if part["eof"] or not follow:
                return
            time.sleep(FOLLOW_SECONDS)


def _show_part(part: Json, *, json: bool) -> None:
    if json:
        output.print_json(part)
    else:
        typer.echo(part["content"], nl=False)


def show_events(job_id: str, *, json: output.AsJson = False) -> None:
    """The job's history. With --json: one line per event."""
    with Client.from_environment() as client:
        events = client.pages(f"/v1/jobs/{client.job_id(job_id)}/events", cursor="seq")
        if json:
            for event in events:
                output.print_json(event)
        else:
            rows = ({**event, "at": event["at"][:19]} for event in events)
            output.print_table(("seq", "at", "type", "data"), rows)


def download(
    job_id: str,
    names: Annotated[list[str] | None, typer.Argument(help="Artifacts; none: all.")] = None,
    to: Annotated[Path, typer.Option(help="Folder; made if it is missing.")] = Path(),
    *,
    json: output.AsJson = False,
) -> None:
    """Download what a job made: the model, predictions, the model card."""
    with Client.from_environment() as client:
        job_id = client.job_id(job_id)
        listed = client.pages(f"/v1/jobs/{job_id}/artifacts", cursor="name")
        found = {artifact["name"]: artifact for artifact in listed}
        if unknown := [name for name in names or [] if name not in found]:
            names_found = ", ".join(sorted(found)) or "none yet"
            raise UsageError(f"{job_id} has no artifact {unknown[0]!r}; it has: {names_found}")
        written = [_download(client, found[name], job_id, to) for name in names or found]
    if json:
        output.print_json({"data": written})
    elif not written:
        output.note("the job has made no artifacts yet")
    else:
        typer.echo("\n".join(str(item["path"]) for item in written))


def _download(client: Client, artifact: Json, job_id: str, to: Path) -> Json:
    name = PurePosixPath(artifact["name"])
    if name.is_absolute() or ".." in name.parts:
        raise UsageError(f"the service names an artifact {str(name)!r}, which is outside {to}")
    target = to / name
    client.download(f"/v1/jobs/{job_id}/artifacts/{quote(str(name))}", target)
    return {"name": artifact["name"], "path": str(target), "bytes": artifact["bytes"]}
