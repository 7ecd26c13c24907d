"""`finetune validate`: the service's answer and the local files, and nothing left behind."""

from pathlib import Path

import httpx

from tests.cli.conftest import Cli
from tests.cli.specs import write_spec


class TestValidate:
    def test_a_valid_spec_leaves_nothing_behind(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        outcome = cli("validate", str(write_spec(tmp_path)))
        assert (outcome.status, outcome.err) == (0, "")
        assert outcome.out.splitlines() == [
            f"{tmp_path / 'spec.json'} is valid",
            "  ./train.jsonl: 0.0 MB, uploaded by `finetune submit`",
        ]
        assert http.get("/v1/files").json()["data"] == []
        assert http.get("/v1/jobs").json()["data"] == []

    def test_faults_are_shown_once_with_status_2(self, cli: Cli, api: str, tmp_path: Path) -> None:
        spec = write_spec(tmp_path, training={"learning_rte": 1})
        outcome = cli("validate", str(spec), "--set", "dataset.train=./gone.jsonl")
        assert (outcome.status, outcome.out) == (2, "")
        assert "Invalid spec: 2 errors" in outcome.err
        assert outcome.err.count("training.learning_rte") == 1
        assert "gone.jsonl does not exist" in outcome.err

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

    def test_ignored_options_are_named(self, cli: Cli, api: str, tmp_path: Path) -> None:
        spec = write_spec(tmp_path, training={"log_level": "passive"})
        outcome = cli("validate", str(spec))
        assert (outcome.status, "ignored: training.log_level" in outcome.err) == (0, True)
