"""`finetune search watch`: follow a search to its end."""

import time
from collections.abc import Callable, Iterator, Sequence

from service.cli import history, output
from service.cli.client import Client, Json
from service.cli.exit_codes import INTERRUPTED
from service.cli.search import page, words
from service.cli.search.live_display import display
from service.cli.search.snapshots import Reader, Snapshot
from service.cli.watch import exit_status
from service.contract.states import ENDED, JobState

POLL_SECONDS = 2.0


def watch(client: Client, search_id: str, *, json: bool) -> int:
    """Show the search until it has ended, then its result; returns the exit status."""
    search: Json = {}
    best: Sequence[Json] = ()
    try:
        with display(json=json) as shown:
            for snapshot in follow(client, search_id, shown.say):
                search, best = snapshot.search, snapshot.best
                shown.show(snapshot)
    except KeyboardInterrupt:
        _say_stopped(search_id, JobState(search.get("state", JobState.RUNNING)))
        return INTERRUPTED
    if not json:
        page.show_result(output.stdout(), search, best)
    return exit_status(search)


def follow(
    client: Client, search_id: str, say: Callable[[str], None] = output.note
) -> Iterator[Snapshot]:
    """The search every few seconds until it has ended; `say` is told when the service does not
    answer."""
    reader = Reader(client, search_id)
    while True:
        snapshot = history.patiently(reader.read, say)
        yield snapshot
        if snapshot.search["state"] in ENDED:
            return
        time.sleep(POLL_SECONDS)


def _say_stopped(search_id: str, state: JobState) -> None:
    short = words.short_id(search_id)
    if state in ENDED:
        output.note(f"Stopped watching; the search has ended: {state}.")
        return
    output.note(f"Stopped watching; the search is still {state}.")
    output.note(
        f"`finetune search watch {short}` shows it again, `finetune search cancel {short}` ends it."
    )
