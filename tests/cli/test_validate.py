"""`finetune validate`: the service's answer and the local files, and nothing left behind."""

from pathlib import Path

import httpx
import pytest

from service.cli import data_preview
from tests.cli.conftest import Cli
from tests.cli.specs import write_spec
from tests.support.models import save_tiny_bert


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


class TestData:
    """`--data`: a process of its own, as users start it. tests/stages/test_preview.py has the
    tasks."""

    @pytest.fixture
    def spec(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("FINETUNE_MODEL_ROOTS", str(tmp_path / "models"))
        model = save_tiny_bert(tmp_path / "models" / "tiny")
        rows = "Satz,Urteil\nein schönes Buch,gut\nzu lang und öde,schlecht\nganz nett,gut\n"
        (tmp_path / "train.csv").write_text(rows)
        columns = {"text": "Satz", "label": "Urteil"}
        dataset = {"source": "upload", "train": "./train.csv", "columns": columns}
        return write_spec(
            tmp_path,
            task="text-classification",
            model={"name_or_path": str(model)},
            dataset=dataset,
        )

    def test_reads_local_files_and_uploads_and_leaves_nothing_behind(
        self, cli: Cli, spec: Path, http: httpx.Client, tmp_path: Path
    ) -> None:
        files = {"file": ("held_out.csv", b"Satz,Urteil\nein Buch,gut\n,gut\n")}
        answer = http.post("/v1/files", files=files, data={"purpose": "fine-tune"})
        change = f"dataset.validation={answer.json()['id']}"
        outcome = cli("validate", str(spec), "--data", "--set", change)
        lines = outcome.out.splitlines()
        assert outcome.status == 2
        assert lines[2] == "train: 3 rows read, 3 usable, 0 bad"
        assert lines[3].startswith("  tokens per row: p50 ")
        assert "validation: 2 rows read, 1 usable, 1 bad" in lines
        assert "  labels: gut 2, schlecht 1" in lines
        given = "notice: Inferred `task.label_names: [gut, schlecht]`: "
        assert any(line.startswith(given) for line in lines)
        assert "  held_out.csv, line 3: `text` is empty (empty_text)" in lines
        assert any(line.startswith("Example 1 of the train split, ") for line in lines)
        assert lines[-1] == "  target: label: schlecht"
        assert "a job would fail with this data (unreadable_row): held_out.csv" in outcome.err
        assert "What to do: " in outcome.err
        assert len(http.get("/v1/files").json()["data"]) == 1

    def test_without_the_worker_packages_it_says_what_to_install(
        self, cli: Cli, spec: Path, api: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data_preview, "_NEEDED", ("no_such_package",))
        outcome = cli("validate", str(spec), "--data")
        assert outcome.status == 2
        assert "install finetune-service[worker]" in outcome.err

    def test_what_may_pass_says_nothing_about_the_rows(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        failure = {"code": "network", "message": "no route", "action": "Retrying in 20 s."}
        data_preview.show_failure(failure)
        said = capsys.readouterr().err
        assert "the data could not be checked here (network): no route" in said
        assert "Retrying" not in said
        data_preview.show_failure({**failure, "code": "missing_column"})
        assert "What to do: Retrying in 20 s." in capsys.readouterr().err
