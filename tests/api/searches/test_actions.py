"""Searches by HTTP: what can be done to them, in each state, and deleting them."""

from typing import Any

import pytest

from service.store.projects import audit
from service.store.scope import Scope
from service.store.tables.jobs import JobRow
from service.store.tables.searches import SearchTrialRow
from service.store.tracking import removals
from tests.api.conftest import Server, code
from tests.api.factories import START, add_job
from tests.api.searches.search_calls import ENDED, LIVE, add_in, row_of, submit
from tests.support.store.searches import TEMPLATE, add_trial

ANSWERS: dict[str, dict[str, str | None]] = {
    # state → the state after the action; None: 409
    "cancel": dict.fromkeys(LIVE, "cancelling")
    | {"queued": "cancelled"}
    | dict.fromkeys(ENDED, None),
    "pause": {"queued": "paused", "running": "pausing", "pausing": "pausing", "paused": "paused"}
    | dict.fromkeys(("cancelling", *ENDED), None),
    "resume": {"queued": "queued", "running": "running", "pausing": "running", "paused": "running"}
    | dict.fromkeys(("cancelling", *ENDED), None),
    "extend": {state: state for state in LIVE if state != "cancelling"}
    | dict.fromkeys(ENDED, "running")
    | {"cancelling": None},
}


class TestActions:
    @pytest.mark.parametrize("action", ANSWERS)
    def test_in_each_state(self, server: Server, action: str) -> None:
        body: dict[str, Any] = {"json": {"max_trials": 30}} if action == "extend" else {}
        for state, after in ANSWERS[action].items():
            search_id = add_in(server, state)
            answer = server.client.post(f"/v1/searches/{search_id}/{action}", **body)
            if after is None:
                ended = state in ENDED and action != "extend"
                assert code(answer) == (409, "search_ended" if ended else "wrong_state"), state
                assert answer.json()["state"] == state
                assert answer.json()["detail"] == (
                    f"The search has already ended: {state}."
                    if ended
                    else "The search is being cancelled."
                )
            else:
                assert answer.status_code == 200, answer.text
                assert answer.json() == {"id": search_id, "state": after}
            assert row_of(server, search_id).state == (after or state)

    def test_a_change_raises_the_version_and_a_repetition_does_not(self, server: Server) -> None:
        search_id = add_in(server, "running")
        for _ in range(2):
            server.client.post(f"/v1/searches/{search_id}/pause")
            assert row_of(server, search_id).version == 1

    def test_a_paused_search_without_trials_is_queued_again(self, server: Server) -> None:
        search_id = submit(server.client)["id"]
        server.client.post(f"/v1/searches/{search_id}/pause")
        answer = server.client.post(f"/v1/searches/{search_id}/resume")
        assert answer.json()["state"] == "queued"

    def test_extend(self, server: Server) -> None:
        search_id = add_in(
            server, "succeeded", max_trials=5, outcome={"action": "publish", "job_id": "job-1"}
        )
        path = f"/v1/searches/{search_id}/extend"
        fewer = server.client.post(path, json={"max_trials": 4})
        assert code(fewer) == (409, "wrong_state")
        assert fewer.json()["state"] == "succeeded"
        assert fewer.json()["detail"].startswith("The search has 5 trials and cannot be made smal")
        same = server.client.post(path, json={"max_trials": 5})
        assert same.json()["state"] == "succeeded"
        assert server.client.post(path, json={"max_trials": 9}).json()["state"] == "running"
        page = server.client.get(f"/v1/searches/{search_id}").json()
        assert (page["max_trials"], page["ended_at"], page["outcome"]) == (9, None, None)

    def test_a_wrong_extension(self, server: Server) -> None:
        path = f"/v1/searches/{add_in(server, 'running')}/extend"
        for body in ({}, {"max_trials": 0}, {"max_trials": 100_001}, {"max_trials": 9, "more": 1}):
            answer = server.client.post(path, json=body)
            assert code(answer) == (422, "invalid_request"), body

    def test_the_audit_log_names_the_search_and_its_project(self, server: Server) -> None:
        made = submit(server.client)["id"]
        server.client.post(f"/v1/searches/{made}/cancel")
        server.client.delete(f"/v1/searches/{made}")
        with server.database.read() as session:
            rows, _ = audit.page(
                session, Scope("default"), audit.Wanted(target=made), after=None, limit=10
            )
        assert [row.action for row in rows] == ["delete_search", "cancel_search", "create_search"]


class TestDelete:
    def test_not_before_it_has_ended(self, server: Server) -> None:
        for state in LIVE:
            search_id = add_in(server, state)
            answer = server.client.delete(f"/v1/searches/{search_id}")
            assert code(answer) == (409, "wrong_state")
            assert answer.json()["state"] == state
            assert row_of(server, search_id).state == state

    def test_with_its_trials_and_their_jobs(self, server: Server) -> None:
        search_id = add_in(server, "succeeded", mlflow_run_id="run-1", tracking_final=True)
        kept = add_in(server, "succeeded")
        mine, theirs = (
            add_job(server.database, state="succeeded", ended_at=START, search_id=each, trial=0)
            for each in (search_id, kept)
        )
        add_trial(server.database, search_id, 0, job_id=mine, reports=[(1, 0.5)])
        add_trial(server.database, kept, 0, job_id=theirs, reports=[(1, 0.5)])
        folder = server.settings.workspace(mine)
        folder.mkdir(parents=True)
        (folder / "weights").write_text("x")
        answer = server.client.delete(f"/v1/searches/{search_id}")
        assert (answer.status_code, answer.json()) == (200, {"id": search_id, "deleted": True})
        assert code(server.client.get(f"/v1/searches/{search_id}")) == (404, "search_not_found")
        assert code(server.client.delete(f"/v1/searches/{search_id}")) == (404, "search_not_found")
        assert server.client.get(f"/v1/jobs/{mine}").status_code == 404
        assert not folder.exists()
        assert server.client.get(f"/v1/jobs/{theirs}").status_code == 200
        assert server.client.get(f"/v1/searches/{kept}/trials").json()["data"][0]["reports"]
        with server.database.read() as session:
            assert session.get(SearchTrialRow, (search_id, 0)) is None
            assert removals.due(session, 10) == ["run-1"]

    def test_not_while_one_of_its_jobs_runs(self, server: Server) -> None:
        search_id = add_in(server, "succeeded")
        ended = add_job(server.database, state="succeeded", ended_at=START, search_id=search_id)
        live = add_job(server.database, state="queued", search_id=search_id, trial=1)
        answer = server.client.delete(f"/v1/searches/{search_id}")
        assert code(answer) == (409, "wrong_state")
        assert answer.json()["detail"] == f"Job {live} of the search is queued: cancel it first."
        assert answer.json()["state"] == "queued"
        with server.database.read() as session:
            assert {job.id for job in session.query(JobRow)} == {ended, live}

    def test_not_while_a_job_begins_with_its_model(self, server: Server) -> None:
        search_id = add_in(server, "succeeded")
        ended = add_job(
            server.database,
            state="succeeded",
            ended_at=START,
            search_id=search_id,
            results={"train": {"output_dir": "attempts/1/output"}},
        )
        derived = server.client.post("/v1/jobs", json=TEMPLATE | {"model": {"job": ended}})
        assert derived.status_code == 201, derived.text
        answer = server.client.delete(f"/v1/searches/{search_id}")
        assert code(answer) == (409, "job_in_use")
        assert server.client.get(f"/v1/jobs/{ended}").status_code == 200
