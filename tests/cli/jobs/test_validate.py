"""`finetune validate`: the service's answer and the local files, and nothing left behind."""

from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from service.contract.failures import Failure, FailureCode
from service.contract.interactive.previews import PreviewResult
from service.store.database import Database
from service.store.tables.interactive import PreviewRow
from tests.cli.conftest import Cli
from tests.cli.preview.preview_rows import FOUND
from tests.cli.specs import write_spec
from tests.support.store.previews import made_by_thread, register_worker


class TestValidate:
    def test_a_valid_spec_leaves_nothing_behind(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        outcome = cli("validate", str(write_spec(tmp_path)))
        assert (outcome.status, outcome.err) == (0, "")
        assert outcome.out.splitlines() == [
            f"{tmp_path / 'spec.json'} is valid",
            "  ./train.jsonl: 93 bytes, uploaded by `finetune submit`",
        ]
        assert http.get("/v1/files").json()["data"] == []
        assert http.get("/v1/jobs").json()["data"] == []

    def test_faults_are_shown_once_with_status_2(self, cli: Cli, api: str, tmp_path: Path) -> None:
        spec = write_spec(tmp_path, training={"learning_rte": 1})
        outcome = cli("validate", str(spec), "--set", "dataset.train=./missing.jsonl")
        assert (outcome.status, outcome.out) == (2, "")
        assert "Invalid spec: 2 errors" in outcome.err
        assert outcome.err.count("training.learning_rte") == 1
        assert "missing.jsonl does not exist" in outcome.err

    def test_without_a_service_the_spec_is_checked_here(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("FINETUNE_URL", "http://127.0.0.1:9")
        valid = cli("validate", str(write_spec(tmp_path)))
        assert (valid.status, valid.out.splitlines()[0]) == (
            0,
            f"{tmp_path / 'spec.json'} is valid",
        )
        assert "not whether the files, jobs and secrets" in " ".join(valid.err.split())
        spec = write_spec(tmp_path, training={"learning_rte": 1})
        faulty = cli("validate", str(spec), "--set", "dataset.train=./missing.jsonl")
        assert (faulty.status, faulty.out) == (2, "")
        assert "did you mean `learning_rate`?" in faulty.err
        assert "missing.jsonl does not exist" in faulty.err
        assert cli("validate", str(spec), "--data").status == 3

    @pytest.mark.parametrize(("job", "status"), [("0199a0b1", 0), ("job-0199a0b1", 0), ("mine", 2)])
    def test_without_a_service_an_id_may_be_shortened(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: str, status: int
    ) -> None:
        monkeypatch.setenv("FINETUNE_URL", "http://127.0.0.1:9")
        outcome = cli("validate", str(write_spec(tmp_path, model={"job": job})))
        assert outcome.status == status

    def test_changes_are_those_of_submit(self, cli: Cli, api: str, tmp_path: Path) -> None:
        spec = str(write_spec(tmp_path, training={"learning_rte": 1}))
        assert cli("validate", spec, "--set", "training.learning_rte=null").status == 0

    def test_an_id_that_no_file_has_is_a_fault(self, cli: Cli, api: str, tmp_path: Path) -> None:
        train = ["./train.jsonl", f"file-{'0' * 32}"]
        spec = write_spec(tmp_path, dataset={"source": "upload", "train": train})
        answer = cli("validate", str(spec), "--json").json()
        assert [(fault["path"], fault["code"]) for fault in answer["errors"]] == [
            ("dataset.train.1", "unknown_file")
        ]

    def test_json_has_errors_warnings_and_ignored_options(
        self, cli: Cli, api: str, tmp_path: Path
    ) -> None:
        spec = write_spec(
            tmp_path, training={"log_level": "passive", "max_steps": 5, "logging_steps": 50}
        )
        outcome = cli("validate", str(spec), "--json")
        answer = outcome.json()
        assert (outcome.status, outcome.err, answer["valid"]) == (0, "", True)
        assert answer["errors"] == []
        assert [option["path"] for option in answer["ignored"]] == ["training.log_level"]
        assert [file["name"] for file in answer["files"]] == ["./train.jsonl"]
        assert answer["files"][0]["bytes"] == (tmp_path / "train.jsonl").stat().st_size


class TestData:
    """`--data`: a worker reads the rows. What it finds for each task:
    tests/stages/preview/test_stage.py; how it is shown: test_preview.py."""

    def test_a_worker_reads_the_rows_and_nothing_stays(
        self, cli: Cli, http: httpx.Client, store: Database, tmp_path: Path
    ) -> None:
        register_worker(store)
        with made_by_thread(store, PreviewResult.model_validate(FOUND)):
            outcome = cli("validate", str(write_spec(tmp_path)), "--data")
        lines = outcome.out.splitlines()
        assert (outcome.status, lines[0]) == (0, f"{tmp_path / 'spec.json'} is valid")
        assert "  train.jsonl, line 2: is empty (empty)" in lines
        assert http.get("/v1/files").json()["data"] == []
        with store.read() as session:
            options = session.scalars(select(PreviewRow)).one().options
        assert options == {"rows": 1000, "shown": 2}

    def test_how_a_job_would_fail(
        self, cli: Cli, api: str, store: Database, tmp_path: Path
    ) -> None:
        register_worker(store)
        failure = Failure.from_code(FailureCode.UNREADABLE_ROW, "train.jsonl, line 2: is empty")
        result = PreviewResult.model_validate({**FOUND, "failure": failure})
        with made_by_thread(store, result):
            shown = cli("validate", str(write_spec(tmp_path)), "--data")
            given = cli("validate", str(write_spec(tmp_path)), "--data", "--json")
        assert (shown.status, given.status) == (2, 2)
        assert "a job would fail with this data (unreadable_row)" in shown.err
        data = given.json()["data"]
        assert data["splits"]["train"]["rows_bad"] == 1
        assert data["failure"]["code"] == "unreadable_row"

    def test_there_may_be_none(self, cli: Cli, api: str, store: Database, tmp_path: Path) -> None:
        register_worker(store)
        with made_by_thread(store, Failure.from_code(FailureCode.TIMEOUT, "too late")):
            outcome = cli("validate", str(write_spec(tmp_path)), "--data", "--json")
        assert (outcome.status, list(outcome.json()["data"])) == (1, ["failure"])
