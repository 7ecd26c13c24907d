"""`finetune webhooks`: where a project's events are sent, and what came of it."""

from typing import Annotated, Any

import typer

from service.cli.terminal import output
from service.cli.terminal.client import Client, Json

app = typer.Typer(no_args_is_help=True, help="Webhooks of the project: events sent to a URL.")

WebhookId = Annotated[str, typer.Argument(help="Its id (webhook-…).")]
Owner = Annotated[
    str,
    typer.Argument(help="A webhook (webhook-…); or a job, for the receivers in its spec as well."),
]
Events = Annotated[
    list[str] | None,
    typer.Option("--event", help="A type, `job.*`, `fine_tuning.job.*` or `*`; repeatable."),
]
_COLUMNS = ("id", "url", "events", "enabled", "disabled_reason", "failing_since")
_OF_DELIVERY = ("id", "type", "state", "tries", "status", "error", "created_at")


@app.command()
def create(
    url: Annotated[str, typer.Argument(help="https, and a public address.")],
    events: Events = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Make a webhook. Its secret is shown this once."""
    given: Json = {"url": url, "description": description}
    _change("POST", "/v1/webhooks", given | ({"events": events} if events else {}), as_json=json)


@app.command("list")
def list_webhooks(*, json: output.AsJson = False) -> None:
    """All webhooks of the project, without their secrets."""
    with Client.from_environment() as client:
        found = client.get("/v1/webhooks")
    output.print_rows({"data": found["data"]}, _COLUMNS, found["data"], as_json=json)


@app.command()
def show(webhook: WebhookId, *, json: output.AsJson = False) -> None:
    """One webhook: whether it is enabled, and since when it fails."""
    with Client.from_environment() as client:
        _show(client.get(f"/v1/webhooks/{webhook}"), as_json=json)


@app.command()
def enable(webhook: WebhookId, *, json: output.AsJson = False) -> None:
    """Enable a webhook that was disabled."""
    _change("PATCH", f"/v1/webhooks/{webhook}", {"enabled": True}, as_json=json)


@app.command()
def disable(webhook: WebhookId, *, json: output.AsJson = False) -> None:
    """Send it nothing until it is enabled again."""
    _change("PATCH", f"/v1/webhooks/{webhook}", {"enabled": False}, as_json=json)


@app.command()
def rotate(
    webhook: WebhookId,
    overlap_seconds: Annotated[
        int, typer.Option(min=0, help="How long the old secret signs as well.")
    ] = 86400,
    *,
    json: output.AsJson = False,
) -> None:
    """Make a new secret, which is shown this once."""
    body = {"overlap_seconds": overlap_seconds}
    _change("POST", f"/v1/webhooks/{webhook}/rotate", body, as_json=json)


@app.command("test")
def send_test(webhook: WebhookId, *, json: output.AsJson = False) -> None:
    """Send a test event; `finetune webhooks deliveries` shows what came of it."""
    _change("POST", f"/v1/webhooks/{webhook}/test", {}, as_json=json)


@app.command()
def deliveries(owner: Owner, *, json: output.AsJson = False) -> None:
    """What was sent to a webhook, or about a job, the newest first."""
    with Client.from_environment() as client:
        found = client.get(f"{_of_owner(client, owner)}/deliveries", {"limit": 100})
    output.print_rows(found, _OF_DELIVERY, found["data"], as_json=json)


@app.command()
def replay(
    owner: Owner,
    delivery: Annotated[str, typer.Argument(help="Its id (delivery-…).")],
    *,
    json: output.AsJson = False,
) -> None:
    """Send the event of a delivery again, with the same `webhook-id`."""
    with Client.from_environment() as client:
        path = f"{_of_owner(client, owner)}/deliveries/{delivery}/replay"
        _show(client.change("POST", path, {}), as_json=json)


def _of_owner(client: Client, owner: str) -> str:
    if owner.startswith("webhook-"):
        return f"/v1/webhooks/{owner}"
    return f"/v1/jobs/{client.job_id(owner)}"


@app.command()
def delete(webhook: WebhookId, *, json: output.AsJson = False) -> None:
    """Delete a webhook with its deliveries."""
    _change("DELETE", f"/v1/webhooks/{webhook}", {}, as_json=json)


def _change(method: str, path: str, body: Json, *, as_json: bool) -> None:
    with Client.from_environment() as client:
        _show(client.change(method, path, body), as_json=as_json)


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    for name, value in found.items():
        if value is not None and name not in ("object", "payload"):
            output.print_line(f"{name}: {value}")
