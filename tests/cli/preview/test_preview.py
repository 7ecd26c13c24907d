"""`finetune preview`: what a worker found, for people and for programs, and nothing left behind."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cli.preview import page
from service.cli.terminal import output
from service.contract.failures import Failure, FailureCode
from service.contract.interactive.previews import PreviewResult
from service.store.database import Database
from tests.cli.conftest import Cli
from tests.cli.preview.preview_rows import FOUND
from tests.cli.specs import write_spec
from tests.support.store.previews import made_by_thread, register_worker


@contextmanager
def worker(store: Database, failure: Failure | None = None) -> Iterator[None]:
    register_worker(store)
    result = PreviewResult.model_validate({**FOUND, "failure": failure})
    with made_by_thread(store, result):
        yield


class TestCommand:
    def test_files_are_uploaded_for_it_and_nothing_stays(
        self, cli: Cli, http: httpx.Client, store: Database, tmp_path: Path
    ) -> None:
        with worker(store):
            outcome = cli("preview", str(write_spec(tmp_path)))
        assert outcome.status == 0
        assert outcome.out.splitlines() == [
            "train: 100 rows read (the limit; --rows reads more), 99 usable, 1 bad",
            "  train.jsonl, line 2: is empty (empty)",
            "  tokens per row: p50 5, p95 5, max 1,200; 3 truncated at 512 (`task.max_length`)",
            "  40 features, 2,000 trained tokens",
            "an epoch: about 1,000 rows, 20,000 trained tokens, 400 features in 50 batches, 25 "
            "optimizer steps; 75 steps in all",
            "tokens of the train rows:",
            "      0 to   511      90 ██████████████████████████████",
            "    512 to 1,200       3 █",
            "notice: 3 rows were cut",
            "",
            "Example 1 of the train split, 8 tokens",
            "  text: Hi there\\x1b[2J!",
            "[[Yes.]]",
            "  tokens: Hi| there|\\x1b|[2J|!|\\n|[[Yes|.]]",
            "  target: the answer",
        ]
        assert "uploaded" in outcome.err
        assert "removed" in outcome.err
        for path in ("/v1/files", "/v1/jobs"):
            assert http.get(path).json()["data"] == []

    def test_a_file_that_was_there_stays(
        self, cli: Cli, http: httpx.Client, store: Database, tmp_path: Path
    ) -> None:
        spec = write_spec(tmp_path)
        rows = (tmp_path / "train.jsonl").read_bytes()
        uploaded = {"file": ("train.jsonl", rows)}
        http.post("/v1/files", files=uploaded, data={"purpose": "fine-tune"}).raise_for_status()
        with worker(store):
            assert cli("preview", str(spec)).err == ""
        assert len(http.get("/v1/files").json()["data"]) == 1

    def test_json_is_the_answer(self, cli: Cli, api: str, store: Database, tmp_path: Path) -> None:
        with worker(store):
            outcome = cli("preview", str(write_spec(tmp_path)), "--rows", "7", "--json")
        answer = outcome.json()
        assert (outcome.status, answer["state"], answer["rows"]) == (0, "succeeded", 7)
        bins = answer["result"]["splits"]["train"]["tokens"]["histogram"]
        assert bins[0] == {"from": 0, "to": 511, "rows": 90}

    def test_how_a_job_would_fail(
        self, cli: Cli, api: str, store: Database, tmp_path: Path
    ) -> None:
        failure = Failure.from_code(FailureCode.UNREADABLE_ROW, "train.jsonl, line 2: is empty")
        with worker(store, failure):
            outcome = cli("preview", str(write_spec(tmp_path)))
        assert outcome.status == 2
        assert "a job would fail with this data (unreadable_row)" in outcome.err
        assert "What to do: Fix or remove the named rows" in outcome.err
        assert "99 usable, 1 bad" in outcome.out

    def test_there_may_be_none(self, cli: Cli, api: str, store: Database, tmp_path: Path) -> None:
        """Which says nothing about the rows."""
        register_worker(store)
        with made_by_thread(
            store, Failure.from_code(FailureCode.TIMEOUT, "too late", action="Again.")
        ):
            outcome = cli("preview", str(write_spec(tmp_path)))
        assert (outcome.status, outcome.out) == (1, "")
        assert "there is no preview (timeout): too late" in outcome.err
        assert "What to do: Again." in outcome.err
        assert "a job would fail" not in outcome.err

    def test_a_wrong_spec_asks_no_worker(self, cli: Cli, api: str, tmp_path: Path) -> None:
        outcome = cli("preview", str(write_spec(tmp_path, training={"learning_rte": 1})))
        assert (outcome.status, outcome.out) == (2, "")
        assert "training.learning_rte" in outcome.err

    def test_it_says_what_it_waits_for(
        self, cli: Cli, api: str, store: Database, tmp_path: Path, noted_why: threading.Event
    ) -> None:
        with made_by_thread(store, PreviewResult(rows_limit=1), after=noted_why):
            outcome = cli("preview", str(write_spec(tmp_path)))
        assert outcome.status == 0
        assert outcome.err.count("no live worker serves the queue `cpu`") == 1


class TestColours:
    def shown(self, **options: Any) -> str:
        console = output._console(width=200, force_terminal=True, **options)
        result = PreviewResult.model_validate(FOUND).model_dump(mode="json", by_alias=True)
        with console.capture() as captured:
            page.show(console, {"failure": None, "result": result})
        return captured.get()

    def test_a_terminal_highlights_what_is_trained(self) -> None:
        text = self.shown(color_system="standard")
        assert "\x1b[30;42mYes.\x1b[0m" in text
        assert "\x1b[30;42mYes|.\x1b[0m" in text
        assert "[[" not in text
        assert "\x1b[2J" not in text

    def test_no_color_has_brackets(self) -> None:
        text = self.shown(color_system="standard", no_color=True)
        assert "[[Yes.]]" in text
        assert "\x1b[30;42m" not in text


def test_what_may_pass_says_nothing_about_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"code": "network", "message": "no route", "action": "Retrying in 20 s."}
    page._show_failure(failure)
    err = capsys.readouterr().err
    assert "the data could not be checked here (network): no route" in err
    assert "Retrying" not in err
