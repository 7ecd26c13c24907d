"""`finetune search watch`: follow a search to its end."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from service.cli.jobs import history
from service.cli.jobs.live_display import display
from service.cli.jobs.result import short_id
from service.cli.jobs.watch import exit_status, followed
from service.cli.search import live_display, page
from service.cli.search.snapshots import Reader, Snapshot
from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import INTERRUPTED
from service.contract.states import ENDED

POLL_SECONDS = 2.0


def watch(client: Client, search_id: str, *, json: bool) -> int:
    """Show the search until it has ended, then its result; returns the exit status."""
    shown = display(live_display.LiveTable, live_display.Lines, json=json)
    updates = partial(follow, client, search_id)
    last = followed(shown, updates, "search", "finetune search", short_id(search_id))
    if last is None:
        return INTERRUPTED
    search, snapshot = last
    if not json:
        page.show_result(output.stdout(), search, snapshot.best)
    return exit_status(search)


def follow(
    client: Client, search_id: str, say: Callable[[str], None] = output.note
) -> Iterator[tuple[Json, Snapshot]]:
    """The search every few seconds until it has ended; calls `say` when the service does not
    answer."""
    reader = Reader(client, search_id)
    while True:
        snapshot = history.patiently(reader.read, say)
        yield snapshot.search, snapshot
        if snapshot.search["state"] in ENDED:
            return
        time.sleep(POLL_SECONDS)
