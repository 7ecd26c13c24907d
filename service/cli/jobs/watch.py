"""`finetune watch`: follow a job to its end."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import typer

from service.cli.jobs import history, live_display
from service.cli.jobs.live_display import Display
from service.cli.jobs.result import short_id, show_result
from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import FAILED, INTERRUPTED, OK
from service.contract.states import ENDED, JobState

T = TypeVar("T")


def exit_status(job: Json) -> int:
    return OK if job["state"] == JobState.SUCCEEDED else FAILED


def watch(client: Client, job_id: str, *, json: bool) -> int:
    """Show the job until it has ended, then its result; returns the exit status."""
    shown = live_display.display(live_display.LiveBar, live_display.Lines, json=json)
    updates = partial(history.follow, client, job_id)
    last = followed(shown, updates, "job", "finetune", short_id(job_id))
    if last is None:
        return INTERRUPTED
    job, _ = last
    if not json:
        show_result(job)
    return exit_status(job)


def followed(
    display: Display[T],
    updates: Callable[[Callable[[str], None]], Iterable[tuple[Json, T]]],
    noun: str,
    command: str,
    short: str,
) -> tuple[Json, T] | None:
    """Show each state of a job or a search; returns the last, or None after a Ctrl-C. `updates` is
    called with a function that reports that the service does not answer."""
    state = JobState.RUNNING
    try:
        with display as shown:
            for page, new in updates(shown.say):
                state = JobState(page["state"])
                shown.show(page, new)
    except KeyboardInterrupt:
        if state in ENDED:
            output.note(f"Stopped watching; the {noun} has ended: {state}.")
            return None
        output.note(f"Stopped watching; the {noun} is still {state}.")
        output.note(
            f"`{command} watch {short}` shows it again, `{command} cancel {short}` ends it."
        )
        return None
    return page, new


def watch_command(job_id: str, *, json: output.AsJson = False) -> None:
    """Follow a job to its end. With --json: its page, one line each time it changes."""
    with Client.from_environment() as client:
        raise typer.Exit(watch(client, client.job_id(job_id), json=json))
