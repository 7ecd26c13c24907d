"""What tests of searches by HTTP share."""

from typing import Any

import httpx

from service.store.scope import EVERYTHING
from service.store.searches import state as searches
from service.store.tables.searches import SearchRow
from tests.api.conftest import Server
from tests.api.factories import START
from tests.support.store.searches import add_search, search_spec

OTHER = {"FineTune-Project": "other"}
LIVE = ("queued", "running", "pausing", "paused", "cancelling")
ENDED = ("succeeded", "failed", "cancelled")


def submit(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/searches", json=search_spec(**changes))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["data"]]


def add_in(server: Server, state: str, **columns: Any) -> str:
    """A search in this state, which has made trials unless it is queued."""
    started = None if state == "queued" else START
    ended = START if state in ENDED else None
    return add_search(server.database, state=state, started_at=started, ended_at=ended, **columns)


def row_of(server: Server, search_id: str) -> SearchRow:
    with server.database.read() as session:
        return searches.get(session, EVERYTHING, search_id)
