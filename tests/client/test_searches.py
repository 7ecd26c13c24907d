"""The client's searches on a real server; the trials are rows as the reconciler writes them."""

import asyncio

import finetune_client
import pytest
from finetune_client import AsyncClient, Client

from service.contract.search.states import TrialState
from service.store.tables.searches import SearchRow
from tests.api.conftest import Server
from tests.client.lossy_proxy import proxy
from tests.support.store.searches import add_search, add_trial, search_spec


@pytest.fixture
def search_id(server: Server) -> str:
    """One with a complete trial, and many that were pruned."""
    found = add_search(server.database, state="running", best=[0], best_scores=[[81.5]])
    add_trial(server.database, found, 0, scores=[81.5], reports=[(10, 70.0), (20, 81.5)])
    for number in range(1, 120):
        add_trial(server.database, found, number, state=TrialState.PRUNED)
    return found


def end(server: Server, search_id: str) -> None:
    with server.database.write() as session:
        row = session.get_one(SearchRow, search_id)
        row.state, row.ended_at = "succeeded", row.created_at


def test_make_read_steer_and_delete(finetune: Client) -> None:
    searches = finetune.searches
    made = searches.create(search_spec(), name="rates", max_trials=15)
    assert (made.name, made.state, made.max_trials, made.warnings) == ("rates", "queued", 15, [])
    assert searches.retrieve(made.id).objectives[0].metric == "eval_f1"
    other = searches.create(search_spec())
    assert [each.id for each in searches.list()] == [other.id, made.id]
    assert [each.id for each in searches.list(name="rates", state=["queued"])] == [made.id]
    assert searches.pause(made.id).state == "paused"
    assert searches.resume(made.id).state == "queued"
    searches.extend(made.id, 19)
    assert searches.retrieve(made.id).max_trials == 19
    assert searches.cancel(made.id).state == "cancelled"
    assert searches.wait(made.id, timeout=5).state == "cancelled"
    assert searches.delete(made.id).deleted is True
    with pytest.raises(finetune_client.NotFoundError) as missing:
        searches.retrieve(made.id)
    assert missing.value.code == "search_not_found"


def test_a_wrong_one_names_its_faults(finetune: Client) -> None:
    with pytest.raises(finetune_client.InvalidSpecError) as refused:
        finetune.searches.create(search_spec(), max_trials=0)
    assert [fault["path"] for fault in refused.value.errors] == ["max_trials"]
    found = finetune.searches.validate(search_spec(), max_trials=0)
    assert (found.valid, [fault.path for fault in found.errors]) == (False, ["max_trials"])


def test_a_lost_answer_makes_one_search(server: Server, fast_retries: None) -> None:
    with proxy(server.url, lose=1) as lossy, Client(lossy.url, api_key="ft-none") as client:
        made = client.searches.create(search_spec())
        assert [each.id for each in client.searches.list()] == [made.id]


def test_all_trials_and_the_best(finetune: Client, search_id: str) -> None:
    trials = list(finetune.searches.trials(search_id))
    assert [trial.trial for trial in trials] == [*range(120)]
    assert trials[0].reports[-1].value == 81.5
    complete = finetune.searches.trials(search_id, state=["complete"])
    assert [trial.trial for trial in complete] == [0]
    assert [trial.trial for trial in finetune.searches.best(search_id)] == [0]


def test_waiting_has_an_end(finetune: Client, server: Server, search_id: str) -> None:
    with pytest.raises(finetune_client.WaitTimeoutError, match="has not ended within 0 s"):
        finetune.searches.wait(search_id, timeout=0)
    end(server, search_id)
    assert finetune.searches.wait(search_id, timeout=5).state == "succeeded"


def test_figures(finetune: Client, search_id: str) -> None:
    assert "data" in finetune.searches.plot(search_id, "history")
    assert "<html" in finetune.searches.plot_html(search_id, "history").lower()
    with pytest.raises(finetune_client.NotFoundError, match="history"):
        finetune.searches.plot(search_id, "histry")


def test_by_await(server: Server, search_id: str) -> None:
    async def life() -> None:
        async with AsyncClient(server.url, api_key="ft-none") as client:
            searches = client.searches
            made = await searches.create(search_spec())
            assert (await searches.validate(search_spec())).valid
            assert [each.id async for each in searches.list()] == [made.id, search_id]
            assert len([each async for each in searches.trials(search_id)]) == 120
            assert [each.trial for each in await searches.best(search_id)] == [0]
            assert (await searches.extend(made.id, 50)).state == "queued"
            assert (await searches.pause(made.id)).state == "paused"
            assert (await searches.resume(made.id)).state == "queued"
            assert (await searches.cancel(made.id)).state == "cancelled"
            assert (await searches.wait(made.id, timeout=5)).state == "cancelled"
            assert (await searches.retrieve(made.id)).max_trials == 50
            assert "data" in await searches.plot(search_id, "history")
            assert "<html" in (await searches.plot_html(search_id, "history")).lower()
            assert (await searches.delete(made.id)).id == made.id

    asyncio.run(life())
