"""`finetune pause|resume|cancel|retry|clone|delete`: act on a job."""

import uuid
from collections.abc import Callable
from typing import Annotated

import typer
from finetune_client.http import calls

from service.cli.jobs.submit import show_submitted
from service.cli.jobs.watch import watch as watch_job
from service.cli.spec.overrides import Changes, merge_patch
from service.cli.spec.spec_check import Force
from service.cli.terminal import ids, output
from service.cli.terminal.client import Client
from service.contract.states import Action


def pause_job(job_id: str, *, json: output.AsJson = False) -> None:
    """Stop a job at its next checkpoint, and keep it for later."""
    _send(lambda job: calls.act(job, Action.PAUSE), job_id, json=json)


def resume_job(job_id: str, *, json: output.AsJson = False) -> None:
    """Resume a paused job."""
    _send(lambda job: calls.act(job, Action.RESUME), job_id, json=json)


def cancel_job(job_id: str, *, json: output.AsJson = False) -> None:
    """Ask a job to stop."""
    _send(lambda job: calls.act(job, Action.CANCEL), job_id, json=json)


def retry_job(job_id: str, *, json: output.AsJson = False) -> None:
    """Retry a failed or cancelled job from the stage that failed."""
    _send(calls.retry_job, job_id, json=json)


def _send(call: Callable[[str], calls.Call], job_id: str, *, json: bool) -> None:
    with Client.from_environment() as client:
        output.print_state(client.send(call(client.job_id(job_id))), as_json=json)


def clone_job(
    job_id: str,
    changes: Changes = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the clone to its end.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="The same key and changes again give the same clone."),
    ] = None,
    force: Force = False,
    json: output.AsJson = False,
) -> None:
    """Make a new job from another job's spec, with changes."""
    patch = merge_patch(changes or [])
    with Client.from_environment() as client:
        patch = ids.in_spec(client.job_id, patch)
        key = idempotency_key or str(uuid.uuid4())
        job = client.send(calls.clone_job(client.job_id(job_id), patch, key, force=force))
        show_submitted(client, job, watch_job if watch else None, json=json)


def delete_job(job_id: str, *, json: output.AsJson = False) -> None:
    """Delete an ended job with its files, in MLflow too; its Hub repository stays."""
    with Client.from_environment() as client:
        deleted = client.change("DELETE", calls.job(client.job_id(job_id)))
    output.print_deleted(deleted, as_json=json)
