"""Figures of searches: drawn once for a version; their pages run no scripts but their own."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.api.searches import figures as search_figures
from service.api.searches import plot_cache
from service.api.searches.plot_cache import NAMES, Asked, Drawing, PlotName, Plots
from service.contract.search.states import TrialState
from service.errors import NoPlotError
from service.store.scope import EVERYTHING
from service.store.searches import state
from service.studies import figures
from tests.api.conftest import Server, code
from tests.support.store.searches import add_search, add_trial

HOSTILE = "</script><script>alert(1)</script>"


DRAW = search_figures.draw


class Drawer:
    """Draws what it was given, and counts."""

    def __init__(self) -> None:
        self.drawn: list[Drawing] = []
        self.let = threading.Event()
        self.let.set()

    def __call__(self, drawing: Drawing) -> str:
        self.drawn.append(drawing)
        assert self.let.wait(20)
        if not drawing.trials:
            raise NoPlotError("This figure needs a complete trial, and there are 0 yet.")
        title = {"text": f"{drawing.name} {HOSTILE}"}
        return json.dumps({"data": [], "layout": {"title": title}})


@pytest.fixture(autouse=True)
def drawer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawer]:
    """In the place of Optuna's figures; before the server starts."""
    drawer = Drawer()
    monkeypatch.setattr(search_figures, "draw", drawer)
    yield drawer
    drawer.let.set()


@pytest.fixture
def search_id(server: Server) -> str:
    made = add_search(server.database, state="running")
    add_trial(server.database, made, 0, scores=[0.5], reports=[(10, 0.4), (20, None)])
    add_trial(server.database, made, 1, state=TrialState.PRUNED, reports=[(10, 0.1)])
    return made


@pytest.fixture
def path(search_id: str) -> str:
    return f"/v1/searches/{search_id}/plots/history"


class TestFigure:
    @pytest.mark.parametrize("name", NAMES)
    def test_is_plotlys_json(self, server: Server, search_id: str, name: str) -> None:
        answer = server.client.get(f"/v1/searches/{search_id}/plots/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["layout"]["title"]["text"].startswith(name)

    def test_shows_every_trial_with_its_reports(
        self, server: Server, search_id: str, drawer: Drawer
    ) -> None:
        server.client.get(f"/v1/searches/{search_id}/plots/rungs?metric=f1")
        [drawing] = drawer.drawn
        assert (drawing.name, drawing.metric) == ("rungs", "f1")
        assert list(drawing.space) == ["training.learning_rate"]
        assert [objective.key for objective in drawing.objectives] == ["eval_f1"]
        first, second = drawing.trials
        assert (first.number, first.state, first.scores) == (0, TrialState.COMPLETE, [0.5])
        assert first.values == {"training.learning_rate": 0.001}
        assert first.reports[10] == 0.4
        assert first.reports[20] != first.reports[20]  # not a number
        assert (second.state, second.scores, second.reports) == (TrialState.PRUNED, None, {10: 0.1})

    def test_unknown_names_the_nearest(self, server: Server, search_id: str) -> None:
        answer = server.client.get(f"/v1/searches/{search_id}/plots/histroy")
        assert (answer.status_code, answer.json()["code"]) == (404, "plot_not_found")
        assert "did you mean `history`?" in answer.json()["detail"]
        other = server.client.get(f"/v1/searches/{search_id}/plots/x").json()["detail"]
        assert all(name in other for name in NAMES)

    def test_of_too_few_trials_says_what_it_needs(self, server: Server, drawer: Drawer) -> None:
        empty = add_search(server.database)
        answer = server.client.get(f"/v1/searches/{empty}/plots/history")
        assert (answer.status_code, answer.json()["code"]) == (409, "no_plot")
        assert answer.json()["detail"].startswith("This figure needs a complete trial")
        assert len(drawer.drawn) == 1


class TestOptunasFigures:
    def test_have_the_names_of_the_route(self) -> None:
        assert figures.FIGURE_NAMES == NAMES

    def test_are_drawn(self, server: Server, search_id: str) -> None:
        asked = Asked(EVERYTHING, search_id, "history", None)
        drawn = json.loads(Plots(server.database, DRAW)._look_up(asked))
        assert [0.5] in [trace["y"] for trace in drawn["data"]]

    def test_that_there_are_not_are_refused_with_the_reason(
        self, server: Server, search_id: str
    ) -> None:
        kept = Plots(server.database, DRAW)
        cases: tuple[tuple[PlotName, str | None, str], ...] = (
            ("pareto-front", None, "2 or 3 objectives, and this search has 1"),
            ("importances", None, "2 complete trials, and there are 1 yet"),
            ("history", "loss", "`loss` is not an objective of this search"),
        )
        for name, metric, says in cases:
            with pytest.raises(NoPlotError, match=says):
                kept._look_up(Asked(EVERYTHING, search_id, name, metric))


class TestKept:
    def test_until_the_search_changes(
        self, server: Server, search_id: str, path: str, drawer: Drawer
    ) -> None:
        first = server.client.get(path).json()
        assert server.client.get(path).json() == first
        assert server.client.get(f"{path}?format=html").status_code == 200
        assert len(drawer.drawn) == 1
        with server.database.write() as session:
            state.changed(session, state.lock(session, EVERYTHING, search_id))
        server.client.get(path)
        assert len(drawer.drawn) == 2

    def test_not_for_another_project(self, server: Server, path: str) -> None:
        assert server.client.get(path).status_code == 200
        server.client.post("/v1/projects", json={"name": "other"})
        answer = server.client.get(path, headers={"FineTune-Project": "other"})
        assert (answer.status_code, answer.json()["code"]) == (404, "search_not_found")

    def test_of_requests_at_the_same_time_one_draws(
        self, server: Server, path: str, drawer: Drawer
    ) -> None:
        drawer.let.clear()
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(server.client.get, path) for _ in range(8)]
            drawer.let.set()
        assert [answer.result().status_code for answer in answers] == [200] * 8
        assert len(drawer.drawn) == 1

    def test_only_so_many(
        self, server: Server, search_id: str, drawer: Drawer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plot_cache, "MOST_KEPT", 2)
        for name in ("history", "slices", "rungs", "rungs", "slices", "history"):
            server.client.get(f"/v1/searches/{search_id}/plots/{name}")
        drawn = [drawing.name for drawing in drawer.drawn]
        assert drawn == ["history", "slices", "rungs", "history"]


class TestPage:
    def test_is_for_browsers(self, server: Server, path: str) -> None:
        browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        for query, headers, kind in (
            ("", {}, "application/json"),
            ("", browser, "text/html; charset=utf-8"),
            ("?format=json", browser, "application/json"),
            ("?format=html", {}, "text/html; charset=utf-8"),
        ):
            answer = server.client.get(path + query, headers=headers)
            assert answer.headers["content-type"] == kind
            assert answer.headers["cache-control"] == "private, no-cache"
        assert code(server.client.get(f"{path}?format=png")) == (422, "invalid_request")

    def test_runs_only_its_two_scripts_and_needs_no_other_file(
        self, server: Server, path: str
    ) -> None:
        answer = server.client.get(f"{path}?format=html")
        scripts = re.findall(r"<script>(.*?)</script>", answer.text, re.S)
        assert len(scripts) == 2
        assert "plotly.js v" in scripts[0]
        policy = answer.headers["content-security-policy"]
        allowed = re.search(r"script-src ([^;]*);", policy)
        assert allowed is not None
        digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
        assert allowed[1].split() == [
            f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests
        ]
        others = policy.replace(f" script-src {allowed[1]};", "")
        assert others == (
            "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
        )
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<(?:script|link|img|iframe)[^>]* (?:src|href)=", answer.text)

    def test_what_a_user_named_is_data(self, server: Server, path: str) -> None:
        page = server.client.get(f"{path}?format=html").text
        [data] = re.findall(
            r'<script type="application/json" id="figure">(.*?)</script>', page, re.S
        )
        assert HOSTILE not in page
        assert json.loads(data)["layout"]["title"]["text"] == f"history {HOSTILE}"

    def test_of_webgl_may_compile(self, server: Server, search_id: str) -> None:
        path = f"/v1/searches/{search_id}/plots"
        for name in NAMES:
            answer = server.client.get(f"{path}/{name}?format=html")
            may = " 'unsafe-eval';" in answer.headers["content-security-policy"]
            assert may is (name == "parallel-coordinates")
