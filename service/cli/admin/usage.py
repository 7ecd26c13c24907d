"""`finetune usage`: what projects have used."""

from typing import Annotated, Any

import typer

from service.cli.terminal import output
from service.cli.terminal.client import Client
from service.system import units

_COLUMNS = (
    "day",
    "project",
    "gpu_hours",
    "worker_hours",
    "attempts",
    "succeeded",
    "failed",
    "cancelled",
    "stored",
)


def show_usage(
    project: Annotated[
        str | None, typer.Option(help="Its name or id; default: all you see.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="First day (UTC), as 2026-01-31.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="Last day (UTC).")] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """GPU hours, worker hours, ended jobs and storage by day and project."""
    given = {"project": project, "from": from_, "to": to}
    with Client.from_environment() as client:
        found = client.get("/v1/usage", {name: value for name, value in given.items() if value})
    output.print_rows(
        {"data": found["data"]}, _COLUMNS, [_row(day) for day in found["data"]], as_json=json
    )


def _row(day: dict[str, Any]) -> dict[str, Any]:
    return {
        **day,
        **day["jobs"],
        "gpu_hours": f"{day['gpu_seconds'] / 3600:.2f}",
        "worker_hours": f"{day['worker_seconds'] / 3600:.2f}",
        "stored": units.size(day["bytes_stored"]),
    }
