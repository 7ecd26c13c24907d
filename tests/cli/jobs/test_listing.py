"""Jobs that the API has created; the tests write to the store what a worker would."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.cli.jobs import history
from service.store.database import Database
from tests.cli.conftest import Cli
from tests.cli.job_rows import end
from tests.cli.pauses import in_pauses
from tests.support.store.job_rows import put

RESULT = {
    "output_dir": "attempts/1/output",
    "metrics": {"eval_f1": 48.25},
    "baseline": {"eval_f1": 5.125},
    "samples": [],
    "steps": 10,
    "epochs": 1.0,
    "weights_sha256": "0" * 64,
}
FAILURE = {"code": "missing_column", "message": "no context", "action": "Map it.", "details": {}}


class TestList:
    def test_shows_the_jobs_and_filters_them(self, cli: Cli, job_id: str) -> None:
        outcome = cli("list")
        assert outcome.status == 0
        assert job_id in outcome.out
        assert job_id not in cli("list", "--state", "failed").out
        assert [job["id"] for job in cli("list", "--json").json()["data"]] == [job_id]

    def test_a_wrong_state_is_wrong_usage(self, cli: Cli, api: str) -> None:
        assert cli("list", "--state", "asleep").status == 2


class TestGet:
    def test_shows_the_job(self, cli: Cli, job_id: str) -> None:
        assert "queued  prepare · waiting" in cli("get", job_id).out
        assert cli("get", job_id, "--json").json()["id"] == job_id

    def test_an_unknown_job_is_status_2_and_stdout_stays_empty(self, cli: Cli, api: str) -> None:
        outcome = cli("get", "job-nowhere", "--json")
        assert (outcome.status, outcome.out) == (2, "")
        assert "'job-nowhere' is not the id of a job" in outcome.err
        assert "job_not_found" in cli("get", "job-" + "0" * 32).err


class TestWatch:
    def test_follows_to_success(
        self, cli: Cli, store: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_pauses(
            monkeypatch,
            history,
            lambda: put(store, job_id, state="running", stage="train", phase="training"),
            lambda: end(store, job_id, "succeeded", results={"train": RESULT}),
        )
        outcome = cli("watch", job_id)
        assert outcome.status == 0
        assert "running  train · training" in outcome.err
        assert outcome.out.splitlines()[0] == f"{job_id} succeeded"
        assert "5.125  48.25" in outcome.out

    def test_a_failed_job_is_status_1_and_shows_the_action(
        self, cli: Cli, store: Database, job_id: str
    ) -> None:
        end(store, job_id, "failed", failure=FAILURE)
        outcome = cli("watch", job_id)
        assert outcome.status == 1
        assert "missing_column: no context" in outcome.out
        assert "Map it." in outcome.out

    def test_json_is_the_page_each_time_it_changed(
        self, cli: Cli, store: Database, job_id: str
    ) -> None:
        end(store, job_id, "cancelled")
        outcome = cli("watch", job_id, "--json")
        assert outcome.status == 1
        assert [page["state"] for page in outcome.json_lines()] == ["cancelled"]

    @pytest.mark.parametrize("state", ["queued", "running", "paused"])
    def test_ctrl_c_ends_the_watching_not_the_job(
        self,
        cli: Cli,
        store: Database,
        job_id: str,
        monkeypatch: pytest.MonkeyPatch,
        state: str,
    ) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        put(store, job_id, state=state)
        in_pauses(monkeypatch, history, interrupt)
        outcome = cli("watch", job_id)
        assert outcome.status == 130
        assert f"Stopped watching; the job is still {state}." in outcome.err
        assert f"finetune cancel {job_id[4:15]}" in outcome.err
        assert cli("get", job_id, "--json").json()["state"] == state


class TestFiles:
    def test_upload_list_and_delete(self, cli: Cli, api: str, tmp_path: Path) -> None:
        path = tmp_path / "train.csv"
        path.write_text("question,context\n")
        file_id = cli("files", "upload", str(path)).out.strip()
        (listed,) = cli("files", "list", "--json").json()["data"]
        assert (listed["id"], listed["filename"]) == (file_id, "train.csv")
        assert cli("files", "delete", file_id[:20], "--json").json() == {
            "id": file_id,
            "object": "file",
            "deleted": True,
        }
        assert cli("files", "list", "--json").json() == {"data": []}

    def test_one_that_expires(self, cli: Cli, api: str, tmp_path: Path) -> None:
        path = tmp_path / "train.csv"
        path.write_text("question,context\n")
        made = cli("files", "upload", str(path), "--expires-after", "2h", "--json").json()
        assert made["expires_at"] - made["created_at"] == 7200
        expires = f"{datetime.fromtimestamp(made['expires_at'], UTC):%Y-%m-%d %H:%M} UTC"
        assert expires in cli("files", "list").out
        refused = cli("files", "upload", str(path), "--expires-after", "60d")
        assert (refused.status, "expires_after" in refused.err) == (2, True)
        unknown = cli("files", "upload", str(path), "--expires-after", "soon")
        assert (unknown.status, "'soon' is not a length of time" in unknown.err) == (2, True)

    @pytest.mark.usefixtures("processes")
    def test_check(self, cli: Cli, api: str, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"document": "x"}\n' * 30 + '{"document": 3}\n')
        file_id = cli("files", "upload", str(path)).out.strip()
        options = ("--task", "causal-lm", "--column", "text=document")
        shown = cli("files", "check", file_id, *options)
        assert shown.status == 1  # not usable as it is
        assert shown.out.startswith("31 rows read, 30 usable, 1 not")
        assert "a.jsonl, line 31" in shown.out
        assert "`dataset.on_bad_row: skip`" in shown.out
        found = cli("files", "check", file_id[5:20], *options, "--json").json()
        assert found["usable_with"] == ["skip"]
        assert cli("files", "check", file_id, "--task", "causal-lm", "--column", "x").status == 2


class TestKeyNeeded:
    @pytest.mark.parametrize("api", ["required"], indirect=True)
    def test_a_client_without_the_key_is_refused(
        self, cli: Cli, api: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = cli("keys", "create", "me").out.strip()
        refused = cli("list")
        assert refused.status == 2
        assert "401" in refused.err
        monkeypatch.setenv("FINETUNE_API_KEY", key)
        assert cli("list").status == 0
