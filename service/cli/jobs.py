"""`finetune list|get`: show jobs."""

from typing import Annotated

import typer

from service.cli import output
from service.cli.client import Client, Json
from service.cli.watch import line, show_result
from service.contract.states import ENDED, JobState


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
