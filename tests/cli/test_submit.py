import json
from pathlib import Path

import httpx
import pytest

from service.cli.exit_codes import UsageError
from service.cli.submit import read_spec
from tests.cli.conftest import Cli

ROWS = (
    '{"question": "Who?", "context": "Watt.", "answers": {"text": ["Watt"], "answer_start": [0]}}\n'
)


def write_spec(folder: Path, **changes: object) -> Path:
    """A spec with its data next to it."""
    (folder / "train.jsonl").write_text(ROWS)
    spec = {
        "name": "from-a-file",
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "upload", "train": "./train.jsonl"},
        **changes,
    }
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return path


class TestReadSpec:
    def test_yaml_and_json_mean_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("task: question-answering\npriority: 3\n")
        (tmp_path / "a.json").write_text('{"task": "question-answering", "priority": 3}')
        assert read_spec(tmp_path / "a.yaml") == read_spec(tmp_path / "a.json")

    def test_a_number_in_yaml_is_a_number(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("training: {learning_rate: 2e-5}\n")
        assert read_spec(tmp_path / "a.yaml") == {"training": {"learning_rate": 2e-5}}

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.json", '{"a": ', "line 1 column"),
            ("a.yaml", "a: [1\nb: 2", "line 2"),
            ("a.yaml", "- 1", "must hold one mapping"),
            ("a.yaml", "\x00", "cannot be read"),
        ],
    )
    def test_names_the_fault_of_a_file(
        self, tmp_path: Path, name: str, text: str, message: str
    ) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=message):
            read_spec(tmp_path / name)


class TestSubmit:
    def test_uploads_files_next_to_the_spec_and_prints_the_id(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        outcome = cli("submit", str(write_spec(tmp_path)))
        assert outcome.status == 0
        job = http.get(f"/v1/jobs/{outcome.out.strip()}").json()
        assert job["name"] == "from-a-file"
        (file_id,) = job["spec"]["dataset"]["train"]
        assert http.get(f"/v1/files/{file_id}/content").text == ROWS

    def test_uploads_each_of_several_validation_sets(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        (tmp_path / "hard.jsonl").write_text(ROWS * 2)
        sets = {"easy": "./train.jsonl", "hard": ["./hard.jsonl"]}
        dataset = {"source": "upload", "train": "./train.jsonl", "validation": sets}
        outcome = cli("submit", str(write_spec(tmp_path, dataset=dataset)))
        spec = http.get(f"/v1/jobs/{outcome.out.strip()}").json()["spec"]
        contents = {
            name: [http.get(f"/v1/files/{file_id}/content").text for file_id in ids]
            for name, ids in spec["dataset"]["validation"].items()
        }
        assert contents == {"easy": [ROWS], "hard": [ROWS * 2]}

    def test_the_same_content_is_uploaded_once(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        spec = write_spec(tmp_path)
        jobs = {cli("submit", str(spec), "--json").json()["id"] for _ in range(2)}
        assert len(jobs) == 2
        assert len(http.get("/v1/files").json()["data"]) == 1

    @pytest.mark.usefixtures("http")
    def test_names_the_ignored_options(self, cli: Cli, tmp_path: Path) -> None:
        spec = write_spec(tmp_path, training={"past_index": -1, "log_level": "passive"})
        outcome = cli("submit", str(spec))
        assert (outcome.status, len(outcome.out.split())) == (0, 1)
        assert "ignored: training.log_level, training.past_index" in outcome.err

    def test_the_same_key_makes_no_second_job(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        spec = write_spec(tmp_path)
        made = {
            cli("submit", str(spec), "--idempotency-key", "k1", "--json").json()["id"]
            for _ in range(2)
        }
        assert len(made) == 1
        assert [job["id"] for job in http.get("/v1/jobs").json()["data"]] == list(made)

    def test_every_fault_is_shown_and_the_status_is_2(
        self, cli: Cli, api: str, tmp_path: Path
    ) -> None:
        spec = write_spec(tmp_path, training={"learning_rte": 1, "bf16": "perhaps"})
        outcome = cli("submit", str(spec))
        assert outcome.status == 2
        assert outcome.out == ""
        assert "training.learning_rte" in outcome.err
        assert "`learning_rate`" in outcome.err
        assert "training.bf16" in outcome.err

    def test_a_file_that_is_missing_is_named(self, cli: Cli, api: str, tmp_path: Path) -> None:
        spec = write_spec(tmp_path)
        (tmp_path / "train.jsonl").unlink()
        outcome = cli("submit", str(spec))
        assert outcome.status == 2
        assert "train.jsonl cannot be read: No such file or directory" in outcome.err

    def test_a_spec_that_is_missing_is_wrong_usage(self, cli: Cli) -> None:
        assert cli("submit", "nowhere.yaml").status == 2

    def test_an_unreachable_service_is_status_3(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_URL", "http://127.0.0.1:9")
        outcome = cli("submit", str(write_spec(tmp_path)))
        assert outcome.status == 3
        assert "no answer from http://127.0.0.1:9" in outcome.err
