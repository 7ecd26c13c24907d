"""`finetune download`."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import FileResponse

from service.cli.models import download, whole_folder
from service.cli.terminal.exit_codes import UsageError
from service.settings import Settings
from service.store.database import Database
from service.store.tables.jobs import JobRow
from tests.cli.conftest import Cli
from tests.cli.job_rows import end
from tests.cli.jobs.job_files import add_artifacts, content
from tests.support.servers.services import wait_until

SPEC: dict[str, Any] = {
    "task": "question-answering",
    "model": {"name_or_path": "org/model"},
    "dataset": {"source": "hub", "name": "org/data"},
}
FILES = {"predictions.json": b"{}", "model/config.json": b'{"a": 1}', "model/README.md": b"card"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def job(store: Database, home: Path, job_id: str) -> str:
    """A job called "mine" that made FILES."""
    add_artifacts(store, home, job_id, FILES)
    return job_id


@pytest.fixture
def other(store: Database, home: Path, http: httpx.Client) -> str:
    """A job with an adapter, and with a file that `job` does not have."""
    spec = {**SPEC, "name": "their", "peft": {"method": "lora"}}
    job_id = str(http.post("/v1/jobs", json=spec).raise_for_status().json()["id"])
    files = {"model/adapter_config.json": b"{}", "model/README.md": b"other card"}
    add_artifacts(store, home, job_id, files)
    return job_id


Send = Callable[[Any], Awaitable[None]]


def slowly(respond: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A large file takes over half a minute, so that who waits for its first bytes sees them."""

    async def respond_slowly(response: object, scope: Any, receive: Any, send: Send) -> None:
        async def send_slowly(message: object) -> None:
            await send(message)
            await asyncio.sleep(0.05)

        await respond(response, scope, receive, send_slowly)

    return respond_slowly


class TestFolder:
    def test_has_the_name_of_the_job(self, cli: Cli, job: str, here: Path) -> None:
        outcome = cli("download", job)
        assert outcome.status == 0
        assert outcome.out.splitlines() == [
            "mine: 3 files, 14 bytes, every sha256 checked",
            'Load it: transformers.AutoModelForQuestionAnswering.from_pretrained("mine/model")',
        ]
        assert content(here / "mine") == FILES
        assert [path.name for path in here.iterdir()] == ["mine"]

    def test_of_a_job_that_has_not_ended_may_lack_files(
        self, cli: Cli, job_id: str, store: Database, home: Path, here: Path
    ) -> None:
        add_artifacts(store, home, job_id, {"data_report.json": b"{}"})
        outcome = cli("download", job_id)
        assert outcome.out == "mine: 1 file, 2 bytes, every sha256 checked\n"
        assert "still queued: what it makes from now on is not here" in outcome.err
        end(store, job_id, "cancelled")
        assert cli("download", job_id, "--force").err == ""

    def test_or_its_id(self, cli: Cli, job: str, store: Database, here: Path) -> None:
        with store.write() as session:
            session.get_one(JobRow, job).name = "../.."
        written = cli("download", job, "--json").json()
        assert written["path"] == job
        assert {item["name"]: Path(item["path"]).read_bytes() for item in written["data"]} == FILES

    def test_an_adapter_is_loaded_as_its_card_says(self, cli: Cli, other: str, here: Path) -> None:
        assert cli("download", other).out.splitlines()[1] == (
            "Load it: the code is in their/model/README.md"
        )

    def test_two_jobs_do_not_mix(self, cli: Cli, job: str, other: str, here: Path) -> None:
        assert cli("download", job, "--to", "models/a").status == 0
        refused = cli("download", other, "--to", "models/a")
        assert (refused.status, refused.out) == (2, "")
        assert "is not empty" in refused.err
        assert "--force" in refused.err
        assert content(here / "models/a") == FILES
        assert cli("download", other, "--to", "models/a", "--force").status == 0
        assert set(content(here / "models/a")) == {"model/adapter_config.json", "model/README.md"}
        assert [path.name for path in (here / "models").iterdir()] == ["a"]

    def test_force_removes_nothing_that_a_user_wrote(
        self, cli: Cli, job: str, other: str, here: Path
    ) -> None:
        cli("download", job, "--to", "a")
        (here / "a/model/notes.txt").write_text("mine")
        refused = cli("download", other, "--to", "a", "--force")
        assert refused.status == 2
        assert "files that no download wrote (model/notes.txt)" in refused.err
        assert content(here / "a") == {**FILES, "model/notes.txt": b"mine"}

    def test_the_current_folder_if_it_is_empty(self, cli: Cli, job: str, here: Path) -> None:
        assert cli("download", job, "--to", ".").status == 0
        assert content(here) == FILES
        assert Path.cwd() == here
        assert cli("download", job, "--to", ".", "--force").status == 0
        assert content(here) == FILES
        names = {path.name for path in here.iterdir()}
        assert names == {"model", "predictions.json", whole_folder.MANIFEST}

    def test_a_file_that_changed_on_the_server_is_refused(
        self, cli: Cli, job: str, home: Path, here: Path
    ) -> None:
        path = Settings(home=home).workspace(job) / "attempts/1/model/config.json"
        path.write_bytes(b'{"a": 2}')
        outcome = cli("download", job)
        assert outcome.status == 3
        assert "another sha256" in outcome.err
        assert list(here.iterdir()) == []

    @pytest.mark.parametrize("names", [(), ("predictions.json",)])
    def test_a_folder_that_cannot_be_written(
        self, cli: Cli, job: str, here: Path, names: tuple[str, ...]
    ) -> None:
        outcome = cli("download", job, *names, "--to", "x" * 300)
        assert outcome.status == 2
        assert "xxx: File name too long" in outcome.err
        assert list(here.iterdir()) == []

    def test_nothing_yet(self, cli: Cli, job_id: str, here: Path) -> None:
        outcome = cli("download", job_id)
        assert (outcome.status, list(here.iterdir())) == (0, [])
        assert "no artifacts yet" in outcome.err


class TestKilled:
    @pytest.mark.usefixtures("processes")
    def test_leaves_no_half_model_and_the_next_try_works(
        self,
        cli: Cli,
        job: str,
        store: Database,
        home: Path,
        api: str,
        here: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        large = b"w" * 50_000_000
        add_artifacts(store, home, job, {"model/model.safetensors": large})
        command = [sys.executable, "-m", "service.cli", "download", job]
        environment = {**os.environ, "FINETUNE_URL": api}
        with monkeypatch.context() as patched:
            patched.setattr(FileResponse, "__call__", slowly(FileResponse.__call__))
            with subprocess.Popen(command, cwd=here, env=environment) as child:
                try:
                    wait_until(lambda: any(here.rglob("*.safetensors.*.part")), 60, "bytes")
                finally:
                    child.kill()
        assert not (here / "mine").exists()
        assert len(list(here.iterdir())) == 1
        assert cli("download", job).status == 0
        assert content(here / "mine") == {**FILES, "model/model.safetensors": large}
        assert [path.name for path in here.iterdir()] == ["mine"]

    def test_while_it_replaces_an_earlier_one(
        self, cli: Cli, job: str, other: str, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli("download", job, "--to", "a")

        class KilledError(BaseException):
            pass

        really = Path.rename

        def rename(path: Path, to: Path) -> None:
            if path.name == "model" and "-removed" not in str(to):
                raise KilledError
            really(path, to)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", rename)
            with pytest.raises(KilledError):
                cli("download", other, "--to", "a", "--force")
        assert not (here / "a/model").exists()
        assert cli("download", other, "--to", "a", "--force").status == 0
        assert set(content(here / "a")) == {"model/adapter_config.json", "model/README.md"}

    def test_one_that_finishes_meanwhile_is_not_a_leftover(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        really = Path.glob
        vanished = tmp_path / "vanished"
        monkeypatch.setattr(Path, "glob", lambda path, each: [vanished, *really(path, each)])
        with whole_folder.writing(tmp_path / "a", "job-1", force=False) as folder:
            (folder / "file").touch()
        assert list(content(tmp_path / "a")) == ["file"]

    def test_a_download_that_runs_is_left_alone(self, tmp_path: Path) -> None:
        def one_within_another() -> None:
            with whole_folder.writing(tmp_path / "a", "job-1", force=False) as first:
                (first / "of_first").touch()
                with whole_folder.writing(tmp_path / "a", "job-2", force=False) as second:
                    (second / "of_second").touch()
                assert (first / "of_first").exists()

        with pytest.raises(UsageError, match="not empty"):
            one_within_another()
        assert list(content(tmp_path / "a")) == ["of_second"]


class TestSomeArtifacts:
    def test_go_to_the_current_folder(self, cli: Cli, job: str, here: Path) -> None:
        (here / "notes.txt").touch()
        outcome = cli("download", job, "model/config.json")
        assert outcome.out.splitlines() == ["model/config.json"]
        assert (here / "model/config.json").read_bytes() == FILES["model/config.json"]
        assert cli("download", job, "model/config.json").status == 0  # the same again

    def test_do_not_replace_other_content(self, cli: Cli, job: str, here: Path) -> None:
        (here / "predictions.json").write_text("[]")
        refused = cli("download", job, "predictions.json")
        assert refused.status == 2
        assert "exists with other content" in refused.err
        assert cli("download", job, "predictions.json", "--force").status == 0
        assert (here / "predictions.json").read_text() == "{}"

    def test_do_not_go_into_the_download_of_another_job(
        self, cli: Cli, job: str, other: str, here: Path
    ) -> None:
        cli("download", other, "--to", "a")
        refused = cli("download", job, "model/config.json", "--to", "a", "--force")
        assert refused.status == 2
        assert f"holds a download of {other}" in refused.err

    def test_an_unknown_name_lists_the_known(self, cli: Cli, job: str, here: Path) -> None:
        outcome = cli("download", job, "nothing.json")
        assert outcome.status == 2
        listed = "it has: model/README.md, model/config.json, predictions.json"
        assert listed in outcome.err


class TestFolderName:
    @pytest.mark.parametrize(
        ("name", "folder"),
        [
            ("squad-distilbert", "squad-distilbert"),
            ("team/squad v1.1", "team-squad-v1.1"),
            ("../../etc/passwd", "etc-passwd"),
            (".hidden", "hidden"),
            ("-rf", "rf"),
            ('a<b>:"c|d?*\\e\x00\n', "a-b-c-d-e"),
            ("..", "job-1"),
            ("", "job-1"),
            (None, "job-1"),
            ("CON", "job-1"),
            ("nul.txt", "job-1"),
            ("质量检查", "质量检查"),
            ("हिन्दी मॉडल", "हिन्दी-मॉडल"),
            ("cafe\u0301", "café"),
            ("\u202e\u200bx🙂", "x"),
            ("x" * 300, "x" * 100),
            ("語" * 100, "語" * 33),
        ],
    )
    def test_is_one_visible_folder(self, name: str | None, folder: str) -> None:
        assert download.folder_name(name, "job-1") == folder
