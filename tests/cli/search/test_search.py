"""`finetune search` against the real API; the trials are rows as the reconciler writes them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cli.search import watch
from service.contract.search.states import TrialState
from service.store.database import Database
from service.store.tables.searches import SearchRow
from tests.cli.conftest import Cli
from tests.cli.pauses import in_pauses
from tests.cli.specs import ROWS, write_spec
from tests.support.store.searches import SPACE, add_search, add_trial

DATASET = {"source": "upload", "train": "./train.jsonl", "validation_split_percentage": 50}
RATE = "training.learning_rate"


def write_search(folder: Path, template: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A search whose template names a file next to it."""
    job = json.loads(write_spec(folder, **{"dataset": DATASET, **(template or {})}).read_text())
    search = {"name": "rates", "job": job, "space": SPACE, "objective": {"metric": "f1"}}
    path = folder / "search.json"
    path.write_text(json.dumps({**search, **changes}))
    return path


def end(store: Database, search_id: str, state: str = "succeeded", **columns: Any) -> None:
    with store.write() as session:
        row = session.get_one(SearchRow, search_id)
        row.state, row.ended_at = state, row.created_at
        for name, value in columns.items():
            setattr(row, name, value)


@pytest.fixture
def search_id(store: Database, api: str) -> str:
    """One with a trial that is complete, one that is pruned, and one that runs."""
    found = add_search(
        store,
        state="running",
        max_trials=10,
        counts={"complete": 1, "pruned": 1, "running": 1},
        best=[0],
        best_scores=[[81.5]],
    )
    add_trial(store, found, 0, scores=[81.5], score_step=20, reports=[(10, 70.25), (20, 81.5)])
    reason = "Below the median at 10."
    add_trial(store, found, 1, state=TrialState.PRUNED, reason=reason, reports=[(10, 60.0)])
    add_trial(store, found, 2, state=TrialState.RUNNING)
    return found


class TestSubmit:
    def test_uploads_the_files_of_its_template_and_prints_the_id(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        outcome = cli("search", "submit", str(write_search(tmp_path)))
        assert outcome.status == 0
        search = http.get(f"/v1/searches/{outcome.out.strip()}").json()
        assert (search["name"], search["state"]) == ("rates", "queued")
        file_id = search["spec"]["job"]["dataset"]["train"]
        file_id = file_id[0] if isinstance(file_id, list) else file_id
        assert http.get(f"/v1/files/{file_id}/content").text == ROWS

    def test_the_same_key_makes_no_second_search(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        command = ("search", "submit", str(write_search(tmp_path)), "--idempotency-key", "k")
        made = {cli(*command, "--json").json()["id"] for _ in range(2)}
        assert [each["id"] for each in http.get("/v1/searches").json()["data"]] == [*made]

    def test_changes(self, cli: Cli, http: httpx.Client, tmp_path: Path) -> None:
        spec = str(write_search(tmp_path, sampler="random"))
        rate = f'space."{RATE}".high=1e-2'
        outcome = cli("search", "submit", spec, "--set", "sampler.seed=3", "--set", rate, "--json")
        stored = outcome.json()["spec"]
        assert (stored["sampler"], stored["space"][RATE]["high"]) == (
            {"name": "random", "seed": 3},
            0.01,
        )

    def test_every_fault_with_its_path_and_nothing_is_uploaded(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        dataset = {**DATASET, "train": ["./train.jsonl", "./missing.jsonl"]}
        spec = write_search(tmp_path, {"dataset": dataset}, max_trials=0)
        outcome = cli("search", "submit", str(spec))
        assert (outcome.status, outcome.out) == (2, "")
        first, *faults = outcome.err.splitlines()
        assert "Invalid spec: 2 errors" in first
        assert [line.split(":")[0].strip() for line in faults] == [
            "job.dataset.train.1",
            "max_trials",
        ]
        assert "missing.jsonl does not exist" in faults[0]
        assert http.get("/v1/files").json()["data"] == []

    def test_a_file_without_a_template(self, cli: Cli, api: str, tmp_path: Path) -> None:
        (tmp_path / "search.yaml").write_text("space: {}\n")
        outcome = cli("search", "submit", str(tmp_path / "search.yaml"))
        assert outcome.status == 2
        assert "job" in outcome.err

    def test_watch_follows_it(
        self, cli: Cli, store: Database, api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def finish() -> None:
            with store.read() as session:
                (row,) = session.query(SearchRow).all()
            end(store, row.id)

        in_pauses(monkeypatch, watch, finish)
        outcome = cli("search", "submit", str(write_search(tmp_path)), "--watch")
        assert outcome.status == 0
        assert "submitted search-" in outcome.err
        assert "succeeded" in outcome.out


class TestValidate:
    def test_a_valid_one_and_its_files(self, cli: Cli, http: httpx.Client, tmp_path: Path) -> None:
        spec = str(write_search(tmp_path))
        outcome = cli("search", "validate", spec)
        assert (outcome.status, outcome.out.splitlines()[0]) == (0, f"{spec} is valid")
        assert "./train.jsonl: " in outcome.out
        assert http.get("/v1/files").json()["data"] == []
        assert http.get("/v1/searches").json()["data"] == []

    def test_the_space_of_one_that_gives_none(self, cli: Cli, api: str, tmp_path: Path) -> None:
        spec = str(write_search(tmp_path, space=None))
        answer = cli("search", "validate", spec, "--json").json()
        assert (answer["valid"], RATE in answer["spec"]["space"]) == (True, True)
        assert answer["spec"]["job"]["dataset"] == DATASET

    def test_as_json(self, cli: Cli, api: str, tmp_path: Path) -> None:
        outcome = cli("search", "validate", str(write_search(tmp_path, max_parallel=0)), "--json")
        answer = outcome.json()
        assert (outcome.status, answer["valid"]) == (2, False)
        assert [fault["path"] for fault in answer["errors"]] == ["max_parallel"]


class TestReading:
    def test_the_list(self, cli: Cli, search_id: str) -> None:
        outcome = cli("search", "list", "--state", "running")
        header, line = outcome.out.splitlines()
        assert header.split() == ["id", "name", "state", "task", "trials", "best", "age"]
        assert line.split()[:6] == [
            *(search_id, "running", "question-answering"),
            *("2", "of", "10"),
        ]
        assert "81.5" in line
        assert cli("search", "list", "--state", "failed", "--json").json()["data"] == []

    def test_the_page(self, cli: Cli, search_id: str) -> None:
        outcome = cli("search", "show", search_id[:20])
        assert f"{search_id} running" in outcome.out
        assert "objective  maximize f1" in outcome.out
        assert "best       trial 0  f1 81.5" in outcome.out
        assert cli("search", "show", search_id, "--json").json()["id"] == search_id

    def test_the_trials(self, cli: Cli, search_id: str) -> None:
        header, *lines = cli("search", "trials", search_id).out.splitlines()
        rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
        assert [(row["trial"], row["state"], row["scores"]) for row in rows] == [
            ("0", "complete", "[81.5]"),
            ("1", "pruned", ""),
            ("2", "running", ""),
        ]
        assert rows[1]["reason"] == "Below the median at 10."

    def test_some_of_the_trials(self, cli: Cli, search_id: str) -> None:
        found = cli("search", "trials", search_id, "--state", "pruned", "--json").json()
        assert [trial["trial"] for trial in found["data"]] == [1]
        outcome = cli("search", "trials", search_id, "--limit", "1", "--after", "0")
        assert "there are more: --after 1" in outcome.err

    def test_the_best(self, cli: Cli, store: Database, search_id: str) -> None:
        assert "trial 0  f1 81.5" in cli("search", "best", search_id).out
        assert [
            trial["trial"] for trial in cli("search", "best", search_id, "--json").json()["data"]
        ] == [0]
        none = cli("search", "best", add_search(store))
        assert (none.out, "No trial is complete yet." in none.err) == ("", True)

    def test_one_that_does_not_exist(self, cli: Cli, api: str) -> None:
        outcome = cli("search", "show", f"search-{'0' * 32}")
        assert outcome.status == 2
        assert "search_not_found" in outcome.err


class TestSteering:
    def test_pause_resume_extend_cancel_and_delete(
        self, cli: Cli, http: httpx.Client, store: Database, api: str
    ) -> None:
        search_id = add_search(store)
        assert cli("search", "pause", search_id).out == f"{search_id} is paused\n"
        assert cli("search", "resume", search_id).out == f"{search_id} is queued\n"
        assert cli("search", "extend", search_id, "--max-trials", "30", "--json").json() == {
            "id": search_id,
            "state": "queued",
        }
        assert http.get(f"/v1/searches/{search_id}").json()["max_trials"] == 30
        assert cli("search", "delete", search_id).status == 2
        assert cli("search", "cancel", search_id).out == f"{search_id} is cancelled\n"
        assert cli("search", "cancel", search_id).status == 2
        assert cli("search", "delete", search_id).out == f"{search_id} is deleted\n"
        assert http.get(f"/v1/searches/{search_id}").status_code == 404

    @pytest.mark.parametrize("command", ["get", "cancel", "logs", "watch", "delete"])
    def test_a_command_for_jobs_says_where_to_go(
        self, cli: Cli, http: httpx.Client, search_id: str, command: str
    ) -> None:
        outcome = cli(command, search_id)
        assert outcome.status == 2
        assert f"{search_id} is a search, and a job is wanted here" in outcome.err
        assert http.get(f"/v1/searches/{search_id}").json()["state"] == "running"


class TestWatch:
    @pytest.mark.parametrize(("state", "status"), [("succeeded", 0), ("failed", 1)])
    def test_the_exit_status_says_how_it_ended(
        self, cli: Cli, store: Database, search_id: str, state: str, status: int
    ) -> None:
        end(store, search_id, state)
        outcome = cli("search", "watch", search_id)
        assert outcome.status == status
        assert f"{search_id} {state}" in outcome.out
        assert "best       trial 0  f1 81.5" in outcome.out

    def test_lines_while_it_runs(
        self, cli: Cli, store: Database, search_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def next_trial() -> None:
            add_trial(store, search_id, 3, scores=[83.0])
            counts = {"complete": 2, "pruned": 1, "running": 1}
            end(
                store,
                search_id,
                "running",
                ended_at=None,
                counts=counts,
                best=[3],
                best_scores=[[83.0]],
            )

        in_pauses(monkeypatch, watch, next_trial, lambda: end(store, search_id))
        outcome = cli("search", "watch", search_id)
        lines = [line.split("  ")[:2] for line in outcome.err.splitlines()]
        counts = "4 of 10 trials: 1 running, 2 complete, 1 pruned"
        assert lines == [
            ["3 of 10 trials: 1 running, 1 complete, 1 pruned", "running"],
            ["best: trial 0", "f1 81.5"],
            ["trial 3 complete: f1 83", "learning_rate 0.001"],
            [counts, "running"],
            ["best: trial 3", "f1 83"],
            [counts, "succeeded"],
            ["best: trial 3", "f1 83"],
        ]

    def test_pages_as_json_lines(
        self, cli: Cli, store: Database, search_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_pauses(monkeypatch, watch, lambda: None, lambda: end(store, search_id))
        outcome = cli("search", "watch", search_id, "--json")
        assert [page["state"] for page in outcome.json_lines()] == ["running", "succeeded"]

    def test_ctrl_c_leaves_it_running(
        self, cli: Cli, http: httpx.Client, search_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        in_pauses(monkeypatch, watch, interrupt)
        outcome = cli("search", "watch", search_id)
        assert outcome.status == 130
        short = search_id.removeprefix("search-")[:11]
        assert "the search is still running" in outcome.err
        assert f"`finetune search watch {short}` shows it again" in outcome.err
        assert http.get(f"/v1/searches/{search_id}").json()["state"] == "running"


class TestPlot:
    def test_a_page_and_a_figure(self, cli: Cli, search_id: str, tmp_path: Path) -> None:
        page, figure = tmp_path / "history.html", tmp_path / "history.json"
        assert cli("search", "plot", search_id, "history", "-o", str(page)).out == f"{page}\n"
        assert "<html" in page.read_text().lower()
        assert cli("search", "plot", search_id, "history", "-o", str(figure)).status == 0
        assert "data" in json.loads(figure.read_text())

    def test_one_that_does_not_exist(self, cli: Cli, search_id: str, tmp_path: Path) -> None:
        target = tmp_path / "x.html"
        outcome = cli("search", "plot", search_id, "histry", "-o", str(target))
        assert (outcome.status, target.exists()) == (2, False)
        assert "history" in outcome.err
