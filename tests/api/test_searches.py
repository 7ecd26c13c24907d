"""Searches by HTTP: submit, list, read, steer and delete them."""

import threading
from typing import Any

import httpx
import pytest
import yaml

from service.api.plots import NAMES
from service.contract.search.states import TrialState
from service.store import audit, searches
from service.store.models import JobRow, SearchRow, SearchTrialRow
from service.store.scope import EVERYTHING, Scope
from tests.api.conftest import Server
from tests.api.factories import START, add_job
from tests.support.databases import on_sqlite
from tests.support.projects import limit, make_project
from tests.support.searches import SPACE, TEMPLATE, add_search, add_trial, search_spec

SPEC = search_spec()
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


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def add_in(server: Server, state: str, **columns: Any) -> str:
    """A search in this state, which has made trials unless it is queued."""
    started = None if state == "queued" else START
    ended = START if state in ENDED else None
    return add_search(server.database, state=state, started_at=started, ended_at=ended, **columns)


def row_of(server: Server, search_id: str) -> SearchRow:
    with server.database.read() as session:
        return searches.get(session, EVERYTHING, search_id)


class TestCreateSearch:
    def test_201_with_location_and_the_page(self, client: httpx.Client) -> None:
        answer = client.post("/v1/searches", json=search_spec(name="first", max_trials=7))
        search = answer.json()
        assert answer.status_code == 201
        assert search.pop("warnings") == []
        assert answer.headers["location"] == f"/v1/searches/{search['id']}"
        assert client.get(answer.headers["location"]).json() == search
        assert (search["object"], search["state"], search["name"]) == ("search", "queued", "first")
        assert (search["task"], search["project"]) == ("question-answering", "default")
        assert search["max_trials"] == 7
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

    def test_one_key_at_the_same_time_is_one_search(self, client: httpx.Client) -> None:
        headers, answers = {"Idempotency-Key": "k-1"}, []
        threads = [
            threading.Thread(
                target=lambda: answers.append(
                    client.post("/v1/searches", json=SPEC, headers=headers)
                )
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {answer.status_code for answer in answers} == {201}
        assert len(answers) == 6
        assert len({answer.json()["id"] for answer in answers}) == 1

    @on_sqlite
    def test_a_key_is_the_projects_own(self, server: Server) -> None:
        make_project(server.database, "other")
        key = {"Idempotency-Key": "k-1"}
        mine = server.client.post("/v1/searches", json=SPEC, headers=key).json()
        theirs = server.client.post("/v1/searches", json=SPEC, headers=key | OTHER).json()
        assert (mine["project"], theirs["project"]) == ("default", "other")
        assert mine["id"] != theirs["id"]

    @on_sqlite
    def test_yaml(self, client: httpx.Client) -> None:
        answer = client.post(
            "/v1/searches",
            content=yaml.safe_dump(SPEC),
            headers={"Content-Type": "application/yaml"},
        )
        assert answer.status_code == 201
        assert answer.json()["spec"]["space"].keys() == SPACE.keys()

    @on_sqlite
    def test_a_wrong_spec_is_refused(self, client: httpx.Client) -> None:
        wrong = search_spec(max_trials=0, job=TEMPLATE | {"dataset": {"source": "upload"}})
        answer = client.post("/v1/searches", json=wrong)
        assert code(answer) == (422, "invalid_spec")
        paths = {fault["path"] for fault in answer.json()["errors"]}
        assert "max_trials" in paths
        assert any(path.startswith("job.dataset") for path in paths)
        assert ids(client.get("/v1/searches")) == []

    @on_sqlite
    def test_its_template_is_checked_as_a_job(self, client: httpx.Client) -> None:
        missing = {"source": "upload", "train": "file-0199a0b1c2d3e4f5a6b7c8d9"}
        answer = client.post("/v1/searches", json=search_spec(job=TEMPLATE | {"dataset": missing}))
        assert [(fault["path"], fault["code"]) for fault in answer.json()["errors"]] == [
            ("job.dataset.train.0", "unknown_file")
        ]

    @on_sqlite
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

    @on_sqlite
    def test_an_archived_project_takes_none(self, server: Server) -> None:
        ended = add_in(server, "failed")
        limit(server.database, archived_at=START)
        answer = server.client.post("/v1/searches", json=SPEC)
        assert code(answer) == (409, "project_archived")
        answer = server.client.post(f"/v1/searches/{ended}/extend", json={"max_trials": 50})
        assert code(answer) == (409, "project_archived")


@on_sqlite
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

    @on_sqlite
    @pytest.mark.parametrize(
        "query", ["after=-1", "after=x", "limit=0", "limit=101", "state=queued"]
    )
    def test_wrong_parameters(self, server: Server, query: str) -> None:
        search_id = add_in(server, "running")
        answer = server.client.get(f"/v1/searches/{search_id}/trials?{query}")
        assert code(answer) == (422, "invalid_request")


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
    @on_sqlite
    @pytest.mark.parametrize(
        ("action", "state", "after"),
        [
            (action, state, after)
            for action, answers in ANSWERS.items()
            for state, after in answers.items()
        ],
    )
    def test_in_each_state(
        self, server: Server, action: str, state: str, after: str | None
    ) -> None:
        search_id = add_in(server, state)
        body = {"json": {"max_trials": 30}} if action == "extend" else {}
        answer = server.client.post(f"/v1/searches/{search_id}/{action}", **body)  # type: ignore[arg-type]
        if after is None:
            ended = state in ENDED and action != "extend"
            assert code(answer) == (409, "search_ended" if ended else "wrong_state")
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
        same = server.client.post(path, json={"max_trials": 5})
        assert same.json()["state"] == "succeeded"
        assert server.client.post(path, json={"max_trials": 9}).json()["state"] == "running"
        page = server.client.get(f"/v1/searches/{search_id}").json()
        assert (page["max_trials"], page["ended_at"], page["outcome"]) == (9, None, None)

    @on_sqlite
    @pytest.mark.parametrize(
        "body", [{}, {"max_trials": 0}, {"max_trials": 100_001}, {"max_trials": 9, "more": 1}]
    )
    def test_a_wrong_extension(self, server: Server, body: dict[str, int]) -> None:
        search_id = add_in(server, "running")
        answer = server.client.post(f"/v1/searches/{search_id}/extend", json=body)
        assert code(answer) == (422, "invalid_request")

    @on_sqlite
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
    @on_sqlite
    @pytest.mark.parametrize("state", LIVE)
    def test_not_before_it_has_ended(self, server: Server, state: str) -> None:
        search_id = add_in(server, state)
        assert code(server.client.delete(f"/v1/searches/{search_id}")) == (409, "wrong_state")
        assert row_of(server, search_id).state == state

    def test_with_its_trials_and_their_jobs(self, server: Server) -> None:
        search_id, kept = add_in(server, "succeeded"), add_in(server, "succeeded")
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

    def test_not_while_one_of_its_jobs_runs(self, server: Server) -> None:
        search_id = add_in(server, "succeeded")
        ended = add_job(server.database, state="succeeded", ended_at=START, search_id=search_id)
        live = add_job(server.database, state="queued", search_id=search_id, trial=1)
        answer = server.client.delete(f"/v1/searches/{search_id}")
        assert code(answer) == (409, "wrong_state")
        assert live in answer.json()["detail"]
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


@on_sqlite
class TestAnotherProject:
    REQUESTS = (
        ("GET", ""),
        ("GET", "/trials"),
        ("GET", "/best"),
        *(("GET", f"/plots/{name}") for name in NAMES),
        *(("POST", f"/{action}") for action in ("cancel", "pause", "resume", "extend")),
        ("DELETE", ""),
    )

    @pytest.mark.parametrize(("method", "rest"), REQUESTS)
    @pytest.mark.parametrize("state", ["running", "succeeded"])
    def test_does_not_see_it(self, server: Server, method: str, rest: str, state: str) -> None:
        make_project(server.database, "other")
        search_id = add_in(server, state)
        add_trial(server.database, search_id, 0, scores=[0.5])
        body = {"json": {"max_trials": 50}} if rest == "/extend" else {}
        path = f"/v1/searches/{search_id}{rest}"
        answer = server.client.request(method, path, headers=OTHER, **body)  # type: ignore[arg-type]
        assert code(answer) == (404, "search_not_found")
        assert row_of(server, search_id).state == state
        assert ids(server.client.get("/v1/searches", headers=OTHER)) == []

    @pytest.mark.parametrize("wrong", ["search-", "job-1", "search-xyz", "search-1%00", "x" * 300])
    def test_nor_does_anybody_what_is_no_id(self, client: httpx.Client, wrong: str) -> None:
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
        for said in (summary, page):
            assert (said["search_id"], said["trial"]) == (search_id, 2)
        said = server.client.get(f"/v1/jobs/{alone}").json()
        assert (said["search_id"], said["trial"]) == (None, None)
        assert code(server.client.get("/v1/jobs?search_id=x")) == (422, "invalid_request")

    @on_sqlite
    def test_the_best_values_trained_again_are_no_trial(self, server: Server) -> None:
        search_id = add_in(server, "running")
        job_id = add_job(server.database, search_id=search_id)
        page = server.client.get(f"/v1/jobs/{job_id}").json()
        assert (page["search_id"], page["trial"]) == (search_id, None)
