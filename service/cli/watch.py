"""`finetune watch`: follow a job to its end."""

import typer

from service.cli import history, output
from service.cli.client import Client, Json
from service.cli.exit_codes import FAILED, INTERRUPTED, OK
from service.cli.live_display import display
from service.cli.result import short_id, show_result
from service.contract.states import ENDED, JobState


def exit_status(job: Json) -> int:
    return OK if job["state"] == JobState.SUCCEEDED else FAILED


def watch(client: Client, job_id: str, *, json: bool) -> int:
    """Show the job until it has ended, then its result; returns the exit status."""
    job: Json = {}
    try:
        with display(json=json) as shown:
            for job, items in history.follow(client, job_id, shown.say):
                shown.show(job, items)
    except KeyboardInterrupt:
        _say_stopped(job_id, JobState(job.get("state", JobState.RUNNING)))
        return INTERRUPTED
    if not json:
        show_result(job)
    return exit_status(job)


def _say_stopped(job_id: str, state: JobState) -> None:
    short = short_id(job_id)
    if state in ENDED:
        output.note(f"Stopped watching; the job has ended: {state}.")
        return
    output.note(f"Stopped watching; the job is still {state}.")
    output.note(f"`finetune watch {short}` shows it again, `finetune cancel {short}` ends it.")


def watch_command(job_id: str, *, json: output.AsJson = False) -> None:
    """Follow a job to its end. With --json: its page, one line each time it changes."""
    with Client.from_environment() as client:
        raise typer.Exit(watch(client, client.job_id(job_id), json=json))
