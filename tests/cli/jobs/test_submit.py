import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.store.database import Database
from service.store.scheduling import registration
from tests.cli.conftest import Cli
from tests.cli.specs import ROWS, write_spec
from tests.support.servers.proxy import LOST, Proxy
from tests.support.store.job_rows import WORKER


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

    @pytest.mark.usefixtures("http")
    def test_what_no_live_worker_has_needs_force(
        self, cli: Cli, store: Database, tmp_path: Path
    ) -> None:
        with store.write() as session:
            registration.register(session, WORKER)
        spec = write_spec(tmp_path, training={"precision": "fp16"})
        for command in ("submit", "validate", "preview"):
            refused = cli(command, str(spec))
            assert refused.status == 2
            assert "`training.precision: fp16` needs a GPU, and no live worker" in refused.err
        forced = cli("submit", str(spec), "--force")
        assert (forced.status, forced.out[:4]) == (0, "job-")
        assert "warning: training.precision: `training.precision: fp16` needs a GPU" in forced.err
        job_id = forced.out.strip()
        assert cli("validate", str(spec), "--force").status == 0
        assert cli("clone", job_id).status == 2
        assert cli("clone", job_id, "--force").status == 0

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

    def test_nothing_is_uploaded_for_a_spec_with_faults(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        spec = write_spec(tmp_path, training={"learning_rte": 1})
        assert cli("submit", str(spec)).status == 2
        assert http.get("/v1/files").json()["data"] == []

    def test_faults_of_fields_and_of_files_are_listed_together(
        self, cli: Cli, api: str, tmp_path: Path
    ) -> None:
        (tmp_path / "empty.jsonl").write_bytes(b"")
        (tmp_path / "latin1.csv").write_bytes("text,label\ngut,1\nschön,2\n".encode("latin-1"))
        (tmp_path / "folder").mkdir()
        (tmp_path / "there.jsonl").write_text(ROWS)
        dataset = {
            "source": "upload",
            "train": ["./there.jsonl", "./trian.jsonl", "./empty.jsonl", "./folder"],
            "validation": {"easy": "./latin1.csv", "hard": "there.jsonl"},
        }
        outcome = cli("submit", str(write_spec(tmp_path, dataset=dataset, priority=11)))
        assert (outcome.status, outcome.out) == (2, "")
        lines = outcome.err.splitlines()
        assert "Invalid spec: 6 errors" in lines[0]
        assert [line.split(":")[0].strip() for line in lines[1:]] == [
            "dataset.train.1",
            "dataset.train.2",
            "dataset.train.3",
            "dataset.validation.easy",
            "dataset.validation.hard",
            "priority",
        ]
        assert "trian.jsonl does not exist; did you mean train.jsonl?" in lines[1]
        assert "empty.jsonl is empty" in lines[2]
        assert "folder is a folder, not a file" in lines[3]
        assert "latin1.csv, line 3: byte 0xf6 is not UTF-8" in lines[4]
        assert "iconv -f LATIN1 -t UTF-8 latin1.csv" in lines[4]
        assert "did you mean `./there.jsonl`?" in lines[5]

    def test_bad_bytes_are_allowed_where_bad_rows_are_skipped(
        self, cli: Cli, http: httpx.Client, tmp_path: Path
    ) -> None:
        (tmp_path / "rows.jsonl").write_bytes(ROWS.encode() + b"\xff\n")
        dataset = {"source": "upload", "train": "./rows.jsonl"}
        assert cli("submit", str(write_spec(tmp_path, dataset=dataset))).status == 2
        skipping = write_spec(tmp_path, dataset={**dataset, "on_bad_row": "skip"})
        assert cli("submit", str(skipping)).status == 0

    def test_what_cannot_be_the_name_of_a_file_is_a_fault(
        self, cli: Cli, api: str, tmp_path: Path
    ) -> None:
        names = ["a pasted row " * 30, "./" + "x" * 300, "./a\x00b"]
        dataset = {"source": "upload", "train": names}
        outcome = cli("submit", str(write_spec(tmp_path, dataset=dataset)))
        assert outcome.status == 2
        assert "Invalid spec: 3 errors" in outcome.err
        assert "File name too long" in outcome.err
        assert "a\\x00b' cannot be the name of a file" in outcome.err

    def test_a_spec_that_is_missing_is_wrong_usage(self, cli: Cli) -> None:
        assert cli("submit", "nowhere.yaml").status == 2

    def test_an_unreachable_service_is_status_3(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_URL", "http://127.0.0.1:9")
        outcome = cli("submit", str(write_spec(tmp_path)))
        assert outcome.status == 3
        assert "no answer from http://127.0.0.1:9" in outcome.err


def two_files(folder: Path) -> str:
    """A spec whose data is `train.jsonl` and `new.jsonl`."""
    (folder / "new.jsonl").write_text(ROWS * 3)
    dataset = {"source": "upload", "train": ["./train.jsonl", "./new.jsonl"]}
    return str(write_spec(folder, dataset=dataset))


class TestUploadsOfAJobThatIsNotMade:
    """What `submit` uploads is removed if the service refuses the job, and only then."""

    @pytest.fixture
    def proxy(self, api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
        with Proxy(api) as proxy:
            monkeypatch.setenv("FINETUNE_URL", proxy.url)
            yield proxy

    @pytest.fixture
    def refused(self, cli: Cli, tmp_path: Path) -> tuple[str, ...]:
        """A command whose spec is valid, and whose POST is refused: the key has another body."""
        (tmp_path / "first").mkdir()
        first = write_spec(tmp_path / "first", priority=1)
        assert cli("submit", str(first), "--idempotency-key", "k").status == 0
        return "submit", two_files(tmp_path), "--idempotency-key", "k"

    def test_are_removed_but_not_what_was_there(
        self, cli: Cli, http: httpx.Client, refused: tuple[str, ...]
    ) -> None:
        before = http.get("/v1/files").json()["data"]
        outcome = cli(*refused)
        assert outcome.status == 2
        assert "idempotency_key_reused" in outcome.err
        assert "new.jsonl as file-" in outcome.err
        assert http.get("/v1/files").json()["data"] == before
        assert [file["filename"] for file in before] == ["train.jsonl"]

    def test_stay_when_the_answer_is_lost(
        self, cli: Cli, http: httpx.Client, proxy: Proxy, tmp_path: Path
    ) -> None:
        spec = str(write_spec(tmp_path))
        proxy.fates["POST /v1/jobs"] = [LOST] * 4
        outcome = cli("submit", spec)
        assert outcome.status == 3
        (job,) = http.get("/v1/jobs").json()["data"]
        (file,) = http.get("/v1/files").json()["data"]
        assert f"Uploaded files were kept: {file['id']}" in outcome.err
        # The command that is suggested finds the job.
        key = outcome.err.split("--idempotency-key ")[1].split("`")[0]
        again = cli("submit", spec, "--idempotency-key", key)
        assert (again.status, again.out.strip()) == (0, job["id"])

    def test_are_removed_when_a_later_one_fails(
        self, cli: Cli, http: httpx.Client, proxy: Proxy, tmp_path: Path
    ) -> None:
        spec = two_files(tmp_path)
        proxy.before["POST /v1/files"] = lambda: (tmp_path / "new.jsonl").unlink()
        outcome = cli("submit", spec)
        assert outcome.status == 2
        assert "new.jsonl cannot be read any more: No such file" in outcome.err
        assert http.get("/v1/files").json()["data"] == []
        assert http.get("/v1/jobs").json()["data"] == []

    def test_are_removed_after_ctrl_c_before_the_post(
        self, cli: Cli, http: httpx.Client, proxy: Proxy, tmp_path: Path
    ) -> None:
        spec = two_files(tmp_path)

        def interrupt_the_second() -> None:
            proxy.before["POST /v1/files"] = lambda: os.kill(os.getpid(), signal.SIGINT)

        proxy.before["POST /v1/files"] = interrupt_the_second
        assert cli("submit", spec).status == 130
        assert proxy.requests[-1].startswith("DELETE /v1/files/file-")
        assert "POST /v1/jobs" not in proxy.requests
        names = {file["filename"] for file in http.get("/v1/files").json()["data"]}
        assert "train.jsonl" not in names

    def test_a_shared_file_that_another_submit_removes_is_uploaded_again(
        self, cli: Cli, http: httpx.Client, proxy: Proxy, tmp_path: Path
    ) -> None:
        spec = str(write_spec(tmp_path))
        ended = cli("submit", spec).out.strip()
        http.post(f"/v1/jobs/{ended}/cancel").raise_for_status()
        (file,) = http.get("/v1/files").json()["data"]
        proxy.before["POST /v1/jobs"] = lambda: http.delete(f"/v1/files/{file['id']}")
        outcome = cli("submit", spec)
        assert outcome.status == 0
        (new,) = http.get("/v1/files").json()["data"]
        job = http.get(f"/v1/jobs/{outcome.out.strip()}").json()
        assert job["spec"]["dataset"]["train"] == [new["id"]] != [file["id"]]
