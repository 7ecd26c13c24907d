"""`finetune checkpoints` and other commands about a job's checkpoints."""

import tarfile
from pathlib import Path

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from tests.cli.conftest import Cli
from tests.cli.job_rows import end
from tests.cli.jobs.job_files import add_checkpoint
from tests.support.store.job_rows import PREPARED


class TestCheckpoints:
    def test_lists_and_downloads(
        self,
        cli: Cli,
        store: Database,
        home: Path,
        job_id: str,
        tmp_path: Path,
    ) -> None:
        add_checkpoint(store, home, job_id, 10)
        add_checkpoint(store, home, job_id, 20, pruned=True)
        rows = cli("checkpoints", job_id, "--json").json()["data"]
        assert [(row["step"], row["best"]) for row in rows] == [(10, True), (20, False)]
        assert "best" in cli("checkpoints", job_id).out
        outcome = cli("checkpoints", job_id, "--download", "10", "--to", str(tmp_path / "out"))
        assert outcome.status == 0
        with tarfile.open(outcome.out.strip()) as tar:
            names = tar.getnames()
        assert names == ["checkpoint-10/model.safetensors", "checkpoint-10/manifest.json"]
        refused = cli("checkpoints", job_id, "--download", "10", "--to", "x" * 300)
        assert refused.status == 2
        assert "xxx: File name too long" in refused.err
        outcome = cli("checkpoints", job_id, "--download", "20", "--to", str(tmp_path))
        assert (outcome.status, outcome.out) == (2, "")
        assert "save_total_limit" in outcome.err
        assert not list(tmp_path.glob("*.tar*"))


class TestFollowUps:
    def ended(self, store: Database, home: Path, job: str) -> None:
        """With a checkpoint and a finished model."""
        add_checkpoint(store, home, job, 10)
        output = Settings(home=home).workspace(job) / "attempts/1/output"
        for folder in (output, home / PREPARED["prepared_dir"], home / PREPARED["model_dir"]):
            folder.mkdir(parents=True)
        results = {"prepare": PREPARED, "train": {"output_dir": "attempts/1/output"}}
        end(store, job, JobState.SUCCEEDED, results=results)

    def test_promote(self, cli: Cli, store: Database, home: Path, job_id: str) -> None:
        assert cli("promote", job_id, "10").status == 2  # it has not ended
        self.ended(store, home, job_id)
        assert cli("promote", job_id, "10").out == f"{job_id} is queued\n"
        again = cli("promote", job_id, "10", "--json").json()
        assert (again["state"], again["follow_up"]["step"]) == ("queued", 10)
        assert cli("promote", job_id, "11").status == 2

    def test_promote_by_the_name_of_a_checkpoint(
        self, cli: Cli, store: Database, home: Path, job_id: str
    ) -> None:
        self.ended(store, home, job_id)
        name = f"ft:model:default:mine:{job_id}"
        for given in ((name,), (f"{name}:ckpt-step-10", "11")):
            refused = cli("promote", *given)
            assert (refused.status, refused.out) == (2, "")
        assert cli("promote", job_id).err == (
            f"finetune: which checkpoint? `finetune checkpoints {job_id}` lists them\n"
        )
        promoted = cli("promote", f"{name}:ckpt-step-10", "--json").json()
        assert promoted["follow_up"]["step"] == 10

    def test_publish(self, cli: Cli, store: Database, home: Path, job_id: str) -> None:
        self.ended(store, home, job_id)
        given = ("--model-id", "org/name", "--public", "--license", "mit")
        page = cli("publish", job_id, *given, "--json").json()
        hub = page["follow_up"]["hub"]
        assert (hub["model_id"], hub["private"], hub["license"]) == ("org/name", False, "mit")
        refused = cli("publish", job_id, "--model-id", "no good name")
        assert refused.status == 2
        assert "hub.model_id" in refused.err
