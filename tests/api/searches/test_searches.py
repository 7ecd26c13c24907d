"""Searches by HTTP: submit, list, read, steer and delete them."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml

from service.contract.search.states import TrialState
from service.store.searches import state as searches
from tests.api.conftest import Server, code
from tests.api.factories import START, add_job
from tests.api.searches.search_calls import OTHER, add_in, ids, row_of, submit
from tests.support.store.databases import on_both
from tests.support.store.projects import limit, make_project
from tests.support.store.searches import SPACE, TEMPLATE, add_search, add_trial, search_spec

SPEC = search_spec()


class TestCreateSearch:
    def test_201_with_location_and_the_page(self, client: httpx.Client) -> None:
        answer = client.post("/v1/searches", json=search_spec(name="first", max_trials=17))
        search = answer.json()
        assert answer.status_code == 201
        assert search.pop("warnings") == []
        assert answer.headers["location"] == f"/v1/searches/{search['id']}"
        assert client.get(answer.headers["location"]).json() == search
        assert (search["object"], search["state"], search["name"]) == ("search", "queued", "first")
        assert (search["task"], search["project"]) == ("question-answering", "default")
        assert search["max_trials"] == 17
        assert search["trials"] == dict.fromkeys(TrialState, 0)
        assert search["objectives"] == [{"metric": "eval_f1", "direction": "maximize"}]
        assert search["actions"] == ["pause", "cancel", "extend"]
        assert (search["best"], search["outcome"], search["started_at"]) == ([], None, None)
        assert search["spec"]["sampler"]["name"] == "tpe"
        # What the template leaves out may differ between trials.
        assert search["spec"]["job"]["model"] == TEMPLATE["model"]
        assert "training" not in search["spec"]["job"]

    def test_same_key_and_body_is_the_same_search(self, client: httpx.Client) -> None:
        headers = {"Idempotency-Key": "k-1"}
        first = client.post("/v1/searches", json=SPEC, headers=headers)
        again = client.post("/v1/searches", json=dict(reversed(SPEC.items())), headers=headers)
        assert (again.status_code, again.json()) == (201, first.json())
        other = client.post("/v1/searches", json=search_spec(max_trials=3), headers=headers)
        assert code(other) == (422, "idempotency_key_reused")
        assert ids(client.get("/v1/searches")) == [first.json()["id"]]

    @on_both
    def test_one_key_at_the_same_time_is_one_search(self, client: httpx.Client) -> None:
        def post(_: int) -> httpx.Response:
            return client.post("/v1/searches", json=SPEC, headers={"Idempotency-Key": "k-1"})

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(post, range(6)))
        assert [answer.status_code for answer in answers] == [201] * 6
        assert len({answer.json()["id"] for answer in answers}) == 1

    def test_yaml(self, client: httpx.Client) -> None:
        answer = client.post(
            "/v1/searches",
            content=yaml.safe_dump(SPEC),
            headers={"Content-Type": "application/yaml"},
        )
        assert answer.status_code == 201
        assert answer.json()["spec"]["space"].keys() == SPACE.keys()

    def test_a_wrong_spec_is_refused(self, client: httpx.Client) -> None:
        wrong = search_spec(max_trials=0, job=TEMPLATE | {"dataset": {"source": "upload"}})
        answer = client.post("/v1/searches", json=wrong)
        assert code(answer) == (422, "invalid_spec")
        paths = {fault["path"] for fault in answer.json()["errors"]}
        assert "max_trials" in paths
        assert any(path.startswith("job.dataset") for path in paths)
        assert ids(client.get("/v1/searches")) == []

    def test_its_template_is_checked_as_a_job(self, client: httpx.Client) -> None:
        missing = {"source": "upload", "train": "file-0199a0b1c2d3e4f5a6b7c8d9"}
        answer = client.post("/v1/searches", json=search_spec(job=TEMPLATE | {"dataset": missing}))
        assert [(fault["path"], fault["code"]) for fault in answer.json()["errors"]] == [
            ("job.dataset.train.0", "unknown_file")
        ]

    def test_files_of_the_space_and_the_token_of_the_best_are_checked(self, server: Server) -> None:
        """Before a search has run for days."""
        make_project(server.database, "other")
        missing = {
            "source": "upload",
            "train": "file-0199a0b1c2d3e4f5a6b7c8d9",
            "validation_split_percentage": 5,
        }
        best = {"action": "publish", "hub": {"model_id": "org/best"}}
        body = search_spec(space={"dataset": [TEMPLATE["dataset"], missing]}, best=best)
        answer = server.client.post("/v1/searches", json=body, headers=OTHER)
        faults = {
            (fault["path"], fault["code"]): fault["message"] for fault in answer.json()["errors"]
        }
        assert faults == {
            ("best.hub", "no_hub_token"): "Jobs of this project do not have the operator's Hub "
            "token: set one with `finetune secrets set`, and name it in `secrets.hub_token`, or "
            "leave out `hub` and push later with `finetune publish`",
            ("space.dataset.choices.1", "unknown_file"): "the file does not exist: upload it with "
            "POST /v1/files",
        }

    def test_a_project_has_at_most_so_many_unfinished(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(searches, "MOST_UNFINISHED", 2)
        make_project(server.database, "other")
        first = submit(server.client)["id"]
        submit(server.client)
        refused = server.client.post("/v1/searches", json=SPEC)
        assert code(refused) == (429, "too_many_searches")
        assert server.client.post("/v1/searches", json=SPEC, headers=OTHER).status_code == 201
        ended = add_in(server, "succeeded")
        more = {"max_trials": 50}
        extend = server.client.post(f"/v1/searches/{ended}/extend", json=more)
        assert code(extend) == (429, "too_many_searches")
        assert row_of(server, ended).max_trials == 20
        server.client.post(f"/v1/searches/{first}/cancel")
        submit(server.client)

    def test_an_archived_project_takes_none(self, server: Server) -> None:
        ended = add_in(server, "failed")
        limit(server.database, archived_at=START)
        answer = server.client.post("/v1/searches", json=SPEC)
        assert code(answer) == (409, "project_archived")
        answer = server.client.post(f"/v1/searches/{ended}/extend", json={"max_trials": 50})
        assert code(answer) == (409, "project_archived")


class TestValidateSearch:
    def test_valid(self, client: httpx.Client) -> None:
        template = TEMPLATE | {"training": {"eval_strategy": "epoch"}}
        body = search_spec(job=template, pruner="asha")
        answer = client.post("/v1/searches/validate", json=body).json()
        assert (answer["valid"], answer["errors"], answer["warnings"]) == (True, [], [])
        assert answer["spec"]["pruner"]["reduction_factor"] == 3
        assert answer["spec"]["pruner"]["unit"] == "epochs"
        assert ids(client.get("/v1/searches")) == []

    def test_files_that_are_not_uploaded_yet(self, client: httpx.Client) -> None:
        file_id = "file-0199a0b1c2d3e4f5a6b7c8d9"
        data = {"source": "upload", "train": file_id, "validation_split_percentage": 10}
        body = search_spec(job=TEMPLATE | {"dataset": data})
        path = "/v1/searches/validate"
        assert client.post(path, json=body).json()["valid"] is False
        assert client.post(f"{path}?pending_file={file_id}", json=body).json()["valid"] is True

    def test_not_valid(self, client: httpx.Client) -> None:
        answer = client.post("/v1/searches/validate", json=search_spec(max_trials="many"))
        assert answer.status_code == 200
        assert (answer.json()["valid"], answer.json()["spec"]) == (False, None)
        assert [fault["path"] for fault in answer.json()["errors"]] == ["max_trials"]


class TestListSearches:
    def test_pages_newest_first(self, server: Server) -> None:
        made = [add_search(server.database) for _ in range(5)]
        first = server.client.get("/v1/searches?limit=2")
        assert ids(first) == [made[4], made[3]]
        page = first.json()
        assert (page["first_id"], page["last_id"], page["has_more"]) == (made[4], made[3], True)
        assert "spec" not in page["data"][0]
        second = server.client.get(f"/v1/searches?limit=3&after={made[3]}")
        assert ids(second) == [made[2], made[1], made[0]]
        assert second.json()["has_more"] is False
        empty = server.client.get(f"/v1/searches?after={made[0]}").json()
        assert (empty["data"], empty["first_id"], empty["has_more"]) == ([], None, False)

    def test_filters(self, server: Server) -> None:
        running = add_in(server, "running", name="a")
        paused = add_in(server, "paused", name="b")
        chat = add_in(server, "succeeded", name="a", task="chat")
        get = server.client.get
        assert ids(get("/v1/searches?state=running")) == [running]
        assert ids(get("/v1/searches?state=running&state=paused")) == [paused, running]
        assert ids(get("/v1/searches?name=a")) == [chat, running]
        assert ids(get("/v1/searches?name=a&task=chat")) == [chat]
        assert ids(get("/v1/searches?task=text-classification")) == []
        assert code(get("/v1/searches?state=done")) == (422, "invalid_request")
        assert code(get("/v1/searches?stat=running")) == (422, "invalid_request")


class TestTrials:
    def test_pages_by_number_with_their_reports(self, server: Server) -> None:
        search_id = add_in(server, "running")
        job_id = add_job(server.database, search_id=search_id, trial=0, state="running")
        add_trial(
            server.database,
            search_id,
            0,
            job_id=job_id,
            origin="template",
            state=TrialState.RUNNING,
            reports=[(10, 0.5), (20, None)],
        )
        for number in range(1, 4):
            add_trial(server.database, search_id, number, scores=[0.5], score_step=30)
        path = f"/v1/searches/{search_id}/trials"
        page = server.client.get(f"{path}?limit=3").json()
        assert [trial["trial"] for trial in page["data"]] == [0, 1, 2]
        assert (page["first_id"], page["last_id"], page["has_more"]) == (0, 2, True)
        first, second, _ = page["data"]
        assert (first["job_id"], first["job_state"], first["state"]) == (
            job_id,
            "running",
            "running",
        )
        assert first["origin"] == "template"
        assert [(each["step"], each["value"]) for each in first["reports"]] == [
            (10, 0.5),
            (20, "nan"),
        ]
        assert (second["scores"], second["score_step"], second["job_state"]) == ([0.5], 30, None)
        assert second["reports"] == []
        rest = server.client.get(f"{path}?after=2").json()
        assert [trial["trial"] for trial in rest["data"]] == [3]
        assert rest["has_more"] is False

    def test_the_last_reports_of_each_are_shown(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(searches, "MOST_REPORTS", 2)
        search_id = add_in(server, "running")
        for number in range(2):
            reports = [(10 * place, 0.1 * place) for place in range(1, 4 - number)]
            add_trial(server.database, search_id, number, reports=reports)
        add_trial(server.database, add_in(server, "running"), 0, reports=[(99, 0.5)])
        found = server.client.get(f"/v1/searches/{search_id}/trials").json()["data"]
        assert [[report["step"] for report in trial["reports"]] for trial in found] == [
            [20, 30],
            [10, 20],
        ]

    def test_of_a_state(self, server: Server) -> None:
        search_id = add_in(server, "running")
        for number, state in enumerate(TrialState):
            add_trial(server.database, search_id, number, state=state)
        path = f"/v1/searches/{search_id}/trials?state=pruned&state=failed"
        found = server.client.get(path).json()["data"]
        assert [trial["state"] for trial in found] == ["pruned", "failed"]

    def test_wrong_parameters(self, server: Server) -> None:
        path = f"/v1/searches/{add_in(server, 'running')}/trials"
        for query in ("after=-1", "after=x", "limit=0", "limit=101", "state=queued"):
            assert code(server.client.get(f"{path}?{query}")) == (422, "invalid_request"), query


class TestBest:
    def test_none_before_a_trial_is_complete(self, server: Server) -> None:
        search_id = add_in(server, "running")
        best = server.client.get(f"/v1/searches/{search_id}/best").json()
        assert best["data"] == []
        assert best["objectives"] == [{"metric": "eval_f1", "direction": "maximize"}]

    def test_of_one_objective(self, server: Server) -> None:
        search_id = add_in(server, "running", best=[1], best_scores=[[0.75]])
        for number, score in enumerate((0.5, 0.75, 0.6)):
            add_trial(server.database, search_id, number, scores=[score])
        best = server.client.get(f"/v1/searches/{search_id}/best").json()["data"]
        assert [(trial["trial"], trial["scores"]) for trial in best] == [(1, [0.75])]
        page = server.client.get(f"/v1/searches/{search_id}").json()
        assert page["best"] == [{"trial": 1, "scores": [0.75]}]

    def test_of_several_objectives_those_that_none_beats(self, server: Server) -> None:
        objective = [{"metric": "f1"}, {"metric": "loss"}]
        search_id = add_search(
            server.database,
            spec={"objective": objective},
            state="running",
            best=[0, 2],
            best_scores=[[0.9, 1.5], [0.7, 0.5]],
        )
        for number, scores in enumerate(([0.9, 1.5], [0.6, 1.6], [0.7, 0.5])):
            add_trial(server.database, search_id, number, scores=scores)
        best = server.client.get(f"/v1/searches/{search_id}/best").json()
        assert [objective["direction"] for objective in best["objectives"]] == [
            "maximize",
            "minimize",
        ]
        assert [(trial["trial"], trial["scores"]) for trial in best["data"]] == [
            (0, [0.9, 1.5]),
            (2, [0.7, 0.5]),
        ]


class TestUnknown:
    def test_what_is_not_an_id(self, client: httpx.Client) -> None:
        for wrong in ("search-", "job-1", "search-xyz", "search-1%00", "x" * 300):
            assert code(client.get(f"/v1/searches/{wrong}")) == (404, "search_not_found")
            assert code(client.post(f"/v1/searches/{wrong}/pause")) == (404, "search_not_found")


class TestJobsOfASearch:
    def test_are_listed_and_say_so(self, server: Server) -> None:
        search_id, other = add_in(server, "running"), add_in(server, "running")
        mine = [
            add_job(server.database, search_id=search_id, trial=number, state=state)
            for number, state in enumerate(("succeeded", "running", "running"))
        ]
        add_job(server.database, search_id=other, trial=0)
        alone = add_job(server.database)
        path = f"/v1/jobs?search_id={search_id}"
        assert ids(server.client.get(path)) == mine[::-1]
        assert ids(server.client.get(f"{path}&state=running&limit=1")) == [mine[2]]
        assert ids(server.client.get(f"{path}&after={mine[1]}")) == [mine[0]]
        summary = server.client.get(path).json()["data"][0]
        page = server.client.get(f"/v1/jobs/{mine[2]}").json()
        for answer in (summary, page):
            assert (answer["search_id"], answer["trial"]) == (search_id, 2)
        answer = server.client.get(f"/v1/jobs/{alone}").json()
        assert (answer["search_id"], answer["trial"]) == (None, None)
        assert code(server.client.get("/v1/jobs?search_id=x")) == (422, "invalid_request")

    def test_the_best_values_trained_again_are_not_a_trial(self, server: Server) -> None:
        search_id = add_in(server, "running")
        job_id = add_job(server.database, search_id=search_id)
        page = server.client.get(f"/v1/jobs/{job_id}").json()
        assert (page["search_id"], page["trial"]) == (search_id, None)
