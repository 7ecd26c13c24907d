"""`finetune search watch`: follow a search to its end."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from service.cli import history, output
from service.cli.client import Client, Json
from service.cli.exit_codes import INTERRUPTED
from service.cli.live_display import display
from service.cli.result import short_id
from service.cli.search import live_display, page
from service.cli.search.snapshots import Reader, Snapshot
from service.cli.watch import exit_status, followed
from service.contract.states import ENDED

POLL_SECONDS = 2.0


def watch(client: Client, search_id: str, *, json: bool) -> int:
    """Show the search until it has ended, then its result; returns the exit status."""
    shown = display(live_display.LiveTable, live_display.Lines, json=json)
    looks = partial(follow, client, search_id)
    last = followed(shown, looks, "search", "finetune search", short_id(search_id))
    if last is None:
        return INTERRUPTED
    search, snapshot = last
    if not json:
        page.show_result(output.stdout(), search, snapshot.best)
    return exit_status(search)


def follow(
    client: Client, search_id: str, say: Callable[[str], None] = output.note
) -> Iterator[tuple[Json, Snapshot]]:
    """The search every few seconds until it has ended; `say` is told when the service does not
    answer."""
    reader = Reader(client, search_id)
    while True:
        snapshot = history.patiently(reader.read, say)
        yield snapshot.search, snapshot
        if snapshot.search["state"] in ENDED:
            return
        time.sleep(POLL_SECONDS)
