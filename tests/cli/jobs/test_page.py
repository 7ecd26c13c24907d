"""`finetune get`; the tests write to the store what a worker would."""

import httpx

from service.contract.failures import Failure, FailureCode
from service.store.database import Database, db_now
from service.store.jobs import endings
from service.store.jobs.endings import Ending, Policy
from tests.cli.conftest import Cli
from tests.cli.job_rows import end
from tests.support.factories import claim_job
from tests.support.store.job_rows import put
from tests.support.store.searches import add_search

TRAINED = {
    "output_dir": "attempts/1/output",
    "metrics": {"eval_f1": 48.25, "train_peak_memory_bytes": 2 * 1024**3},
    "baseline": {"eval_f1": 5.125},
    "samples": [
        {"question": f"Who is [number {number}]?", "context": "word " * 100, "prediction": "Ada"}
        for number in range(5)
    ],
    "steps": 10,
    "epochs": 1.0,
    "weights_sha256": "0" * 64,
}


def attempt(store: Database, job_id: str, ending: Ending) -> None:
    """An attempt of the stage that the job waits for, which ends at once."""
    put(store, job_id, not_before=db_now())
    policy = Policy(crash_limit=3, retry_backoff_seconds=30)
    epoch = claim_job(store, job_id).epoch
    with store.write() as session:
        endings.end(session, job_id, epoch, ending, policy)


def uploaded(http: httpx.Client, name: str) -> str:
    rows = f"question,context,answers\nWho wrote {name}?,Ada wrote {name}.,Ada\n"
    answer = http.post("/v1/files", files={"file": (name, rows)}, data={"purpose": "fine-tune"})
    return str(answer.raise_for_status().json()["id"])


class TestGet:
    def test_a_job_that_has_ended(self, cli: Cli, store: Database, job_id: str) -> None:
        failure = Failure.from_code(FailureCode.NETWORK, "Could not reach the Hub.")
        attempt(store, job_id, Ending("failed", failure=failure))
        attempt(store, job_id, Ending("finished", result={}))
        end(store, job_id, "succeeded", stage="publish", results={"train": TRAINED})
        lines = cli("get", job_id).out.splitlines()
        text = "\n".join(lines)
        assert lines[0] == f"{job_id} succeeded  mine"
        facts = dict(line.split(maxsplit=1) for line in lines[1:6])
        assert facts["task"] == "question-answering"
        assert facts["model"] == "org/model"
        assert facts["data"] == "org/data of the Hub"
        assert facts["created"].endswith(" ago")
        assert "after it was created" in text
        attempts = [line.split()[-6:] for line in lines if line.endswith("on worker-1")]
        assert [" ".join(words) for words in attempts] == [
            "network 1 of prepare on worker-1",
            "finished 2 of prepare on worker-1",
        ]
        assert "eval_f1" in text
        assert "2.0 GiB" in text
        assert text.count("\nsample ") == 3
        assert "question: Who is [number 0]?" in text
        assert "context: " + ("word " * 100)[:69] + "…" in text
        assert f"clone, publish, delete: `finetune clone {job_id[4:15]}`" in text

    def test_a_job_that_waits_for_a_retry(self, cli: Cli, store: Database, job_id: str) -> None:
        failure = Failure.from_code(FailureCode.NETWORK, "Could not reach the Hub.")
        attempt(store, job_id, Ending("failed", failure=failure))
        out = cli("get", job_id).out
        assert "queued  prepare · waiting: retry 1 of 3 in " in out
        assert " s: could not reach the Hub\n" in out

    def test_a_trial_names_its_search(self, cli: Cli, store: Database, job_id: str) -> None:
        search_id = add_search(store)
        put(store, job_id, search_id=search_id, trial=3)
        assert f"search   trial 3 of {search_id}" in cli("get", job_id).out.splitlines()

    def test_uploads_are_called_by_their_names_while_they_exist(
        self, cli: Cli, store: Database, http: httpx.Client
    ) -> None:
        ids = {name: uploaded(http, name) for name in ("train.csv", "dev.csv", "old.csv")}
        dataset = {
            "source": "upload",
            "train": [ids["train.csv"], ids["old.csv"]],
            "validation": {"dev": ids["dev.csv"]},
        }
        model = {"name_or_path": "org/model"}
        spec = {"task": "question-answering", "model": model, "dataset": dataset}
        job_id = http.post("/v1/jobs", json=spec).raise_for_status().json()["id"]
        end(store, job_id, "cancelled")
        http.delete(f"/v1/files/{ids['old.csv']}").raise_for_status()
        [data] = [line for line in cli("get", job_id).out.splitlines() if line.startswith("data")]
        train = f"train.csv ({ids['train.csv']}), {ids['old.csv']}"
        assert (
            data.split(maxsplit=1)[1]
            == f"train: {train}; validation: dev dev.csv ({ids['dev.csv']})"
        )
