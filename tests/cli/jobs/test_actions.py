"""Actions on a job by command line; the API has the rules."""

from pathlib import Path

import httpx

from service.store.database import Database
from tests.cli.conftest import Cli
from tests.cli.job_rows import end
from tests.support.store.job_rows import put


class TestCancel:
    def test_a_waiting_job_is_cancelled_and_cannot_be_again(self, cli: Cli, job_id: str) -> None:
        assert cli("cancel", job_id).out == f"{job_id} is cancelled\n"
        again = cli("cancel", job_id)
        assert again.status == 2
        assert "job_ended" in again.err


class TestClone:
    def test_with_changes(self, cli: Cli, job_id: str) -> None:
        changes = ("training.learning_rate=1e-4", "name=second try", "metadata.team=x")
        outcome = cli("clone", job_id, *(word for c in changes for word in ("--set", c)))
        clone = outcome.out.strip()
        assert (outcome.status, clone.startswith("job-"), clone != job_id) == (0, True, True)
        job = cli("get", clone, "--json").json()
        assert (job["name"], job["cloned_from"]) == ("second try", job_id)
        assert job["spec"]["training"]["learning_rate"] == 1e-4
        assert job["metadata"] == {"team": "x"}

    def test_watch_follows_the_clone(
        self, cli: Cli, job_id: str, store: Database, http: httpx.Client
    ) -> None:
        clone = cli("clone", job_id, "--idempotency-key", "k", "--json").json()["id"]
        end(store, clone, "failed", failure=None)
        assert cli("clone", job_id, "--idempotency-key", "k", "--watch").status == 1


class TestDelete:
    def test_an_ended_job_and_its_files(
        self, cli: Cli, job_id: str, store: Database, home: Path
    ) -> None:
        put(store, job_id, state="running")
        assert "wrong_state" in cli("delete", job_id).err
        workspace = home / "jobs" / job_id
        (workspace / "attempts" / "1").mkdir(parents=True)
        end(store, job_id, "failed")
        assert cli("delete", job_id).out == f"{job_id} is deleted\n"
        assert not workspace.exists()
        assert cli("get", job_id).status == 2
