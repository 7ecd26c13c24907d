"""Submit, validate, list, read and cancel."""

from datetime import timedelta
from typing import Any, ClassVar

import httpx
import pytest

from service.contract.failures import Failure, FailureCode
from service.contract.states import JobState, Stage
from service.store.tables.jobs import AttemptRow
from tests.api.conftest import Server
from tests.api.factories import SPEC, START, add_job, spec
from tests.support.store.databases import on_both


class TestCreateJob:
    def test_201_with_location_and_every_default(self, client: httpx.Client) -> None:
        answer = client.post("/v1/jobs", json=spec(name="first", metadata={"team": "search"}))
        job = answer.json()
        assert answer.status_code == 201
        assert (job.pop("ignored"), job.pop("warnings")) == ([], [])
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
        assert client.get(answer.headers["location"]).json() == job
        assert (job["state"], job["stage"], job["queue_position"]) == ("queued", "prepare", 1)
        assert job["spec"]["training"]["learning_rate"] == 5e-5
        assert job["metadata"] == {"team": "search"}
        assert (job["result"], job["failure"], job["mlflow_url"]) == (None, None, None)

    def test_same_key_and_body_is_the_same_job(self, client: httpx.Client) -> None:
        headers = {"Idempotency-Key": "k-1"}
        first = client.post("/v1/jobs", json=SPEC, headers=headers)
        reordered = dict(reversed(SPEC.items()))
        again = client.post("/v1/jobs", json=reordered, headers=headers)
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
        other = client.post("/v1/jobs", json=spec(priority=1), headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        assert len(client.get("/v1/jobs").json()["data"]) == 1

    @pytest.mark.parametrize("key", ["", "a b", "x" * 256])
    def test_a_key_that_is_none(self, client: httpx.Client, key: str) -> None:
        answer = client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": key})
        assert answer.status_code == 422


class TestValidateJob:
    def test_valid(self, client: httpx.Client) -> None:
        answer = client.post("/v1/jobs/validate", json=SPEC).json()
        assert (answer["valid"], answer["errors"]) == (True, [])
        assert answer["spec"]["max_retries"] == 3
        assert client.get("/v1/jobs").json()["data"] == []

    def test_not_valid(self, client: httpx.Client) -> None:
        answer = client.post("/v1/jobs/validate", json=spec(priority=10))
        assert answer.status_code == 200
        assert (answer.json()["valid"], answer.json()["spec"]) == (False, None)
        assert answer.json()["errors"][0]["path"] == "priority"

    def test_a_pending_file_counts_as_uploaded_and_no_other(self, client: httpx.Client) -> None:
        pending, missing = f"file-{'a' * 32}", f"file-{'b' * 32}"
        dataset = {"source": "upload", "train": [pending], "validation": [pending]}

        def faults(body: dict[str, Any]) -> list[str]:
            answer = client.post(f"/v1/jobs/validate?pending_file={pending}", json=body)
            return [fault["path"] for fault in answer.json()["errors"]]

        assert faults(spec(dataset=dataset)) == []
        assert faults(spec(dataset={**dataset, "test": [missing]})) == ["dataset.test.0"]
        refused = client.post("/v1/jobs", json=spec(dataset=dataset))
        assert refused.status_code == 422


class TestIgnoredOptions:
    TRAINING: ClassVar = {
        "optim": "adamw_hf",
        "hub_token": "<HUB_TOKEN>",
        "save_safetensors": True,
        "warmup_ratio": 0.0,
        "warmup_steps": 10,
        "adafactor": False,
        "predict_with_generate": False,
    }
    IGNORED: ClassVar = [
        (
            "training.adafactor",
            False,
            "`false` is the default; today's option is `optim`",
        ),
        (
            "training.hub_token",
            "[hidden]",
            "it is at its default; a token is never part of a spec: name a secret of the project "
            "in `secrets.hub_token`; without one the job has the operator's (FINETUNE_HUB_TOKEN)",
        ),
        (
            "training.optim",
            "adamw_hf",
            "`adamw_hf` is read as `adamw_torch`; the two apply `adam_epsilon` and `weight_decay` "
            "slightly differently",
        ),
        (
            "training.predict_with_generate",
            False,
            "it is at its default; use `task.predict_with_generate`",
        ),
        (
            "training.save_safetensors",
            True,
            "it is at its default; weights are always saved as safetensors",
        ),
        (
            "training.warmup_ratio",
            0.0,
            "an older name of `warmup_steps`, which has no effect at this value",
        ),
    ]

    @pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/validate"])
    def test_are_listed(self, client: httpx.Client, path: str) -> None:
        answer = client.post(path, json=spec(training=self.TRAINING)).json()
        found = [
            (option["path"], option["given"], option["reason"]) for option in answer["ignored"]
        ]
        assert found == self.IGNORED
        training = answer["spec"]["training"]
        assert (training["optim"], training["warmup_steps"]) == ("adamw_torch", 10)

    def test_are_listed_with_the_faults(self, client: httpx.Client) -> None:
        body = spec(training=self.TRAINING | {"past_index": 2})
        answer = client.post("/v1/jobs/validate", json=body).json()
        assert [fault["path"] for fault in answer["errors"]] == ["training.past_index"]
        assert len(answer["ignored"]) == len(self.IGNORED)

    def test_of_a_clone_and_of_none(self, client: httpx.Client) -> None:
        job = client.post("/v1/jobs", json=SPEC).json()
        assert job["ignored"] == []
        patch = {"training": {"past_index": -1}}
        clone = client.post(f"/v1/jobs/{job['id']}/clone", json=patch).json()
        assert [option["path"] for option in clone["ignored"]] == ["training.past_index"]


@on_both
class TestListJobs:
    def ids(self, client: httpx.Client, **query: Any) -> list[str]:
        answer = client.get("/v1/jobs", params=query)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    def test_newest_first_in_pages(self, server: Server) -> None:
        made = [add_job(server.database) for _ in range(5)][::-1]
        page = server.client.get("/v1/jobs", params={"limit": 2}).json()
        assert [job["id"] for job in page["data"]] == made[:2]
        assert (page["first_id"], page["last_id"], page["has_more"]) == (made[0], made[1], True)
        page = server.client.get("/v1/jobs", params={"limit": 3, "after": made[1]}).json()
        assert [job["id"] for job in page["data"]] == made[2:]
        assert page["has_more"] is False

    def test_filters(self, server: Server) -> None:
        database, client = server.database, server.client
        a = add_job(database, spec=spec(name="a", metadata={"team": "x", "env": "p:q"}))
        b = add_job(database, spec=spec(name="b", metadata={"team": "x"}), state="failed")
        c = add_job(database, state="running")
        assert self.ids(client) == [c, b, a]
        assert self.ids(client, state="failed") == [b]
        assert self.ids(client, state=["failed", "running"]) == [c, b]
        assert self.ids(client, name="a") == [a]
        assert self.ids(client, task="question-answering") == [c, b, a]
        assert self.ids(client, task="other") == []
        assert self.ids(client, metadata="team:x") == [b, a]
        assert self.ids(client, metadata=["team:x", "env:p:q"]) == [a]
        assert self.ids(client, metadata="team:y") == []
        assert self.ids(client, metadata="team:x", state="failed", name="b") == [b]
        assert self.ids(client, metadata="team:x", after=b) == [a]

    def test_the_best_metric_of_a_trained_job(self, server: Server) -> None:
        trained = {"metric_for_best_model": "eval_f1", "best_metric": 61.5, "best_step": 20}
        nan = {**trained, "best_metric": "nan"}
        none = dict.fromkeys(trained)
        jobs = [
            add_job(server.database, results={"train": results} if results else {})
            for results in (trained, nan, none, {})
        ]
        listed = server.client.get("/v1/jobs").json()["data"]
        best = {"name": "eval_f1", "value": 61.5, "step": 20}
        wanted = [best, {**best, "value": "nan"}, None, None]
        assert [job["best_metric"] for job in reversed(listed)] == wanted
        for job_id, expected in zip(jobs, wanted, strict=True):
            assert server.client.get(f"/v1/jobs/{job_id}").json()["best_metric"] == expected

    def test_by_the_beginning_of_the_id(self, server: Server) -> None:
        database, client = server.database, server.client
        a = add_job(database, id="job-18a3ff" + "0" * 26, spec=spec(metadata={"team": "x"}))
        b = add_job(database, id="job-18a3ff" + "f" * 26, state="failed")
        add_job(database, id="job-18a4" + "0" * 28)
        add_job(database, id="job-18a3fe" + "f" * 26)
        assert self.ids(client, id_prefix="job-18a3ff") == [b, a]
        assert self.ids(client, id_prefix=a) == [a]
        assert self.ids(client, id_prefix="job-18a3ff", state="failed") == [b]
        assert self.ids(client, id_prefix="job-18a3ff", metadata="team:x") == [a]
        assert self.ids(client, id_prefix="job-18a5") == []
        for wrong in ("18a3", "job-", "job-18A3", "job-%", "job-18a3\x00"):
            assert client.get("/v1/jobs", params={"id_prefix": wrong}).status_code == 422

    def test_created(self, server: Server) -> None:
        client = server.client
        made = [client.post("/v1/jobs", json=SPEC).json() for _ in range(3)]
        middle = made[1]["created_at"]
        assert self.ids(client, created_after=middle) == [made[2]["id"]]
        assert self.ids(client, created_before=middle) == [made[0]["id"]]
        assert self.ids(
            client, created_after=made[0]["created_at"], created_before=made[2]["created_at"]
        ) == [made[1]["id"]]
        assert self.ids(client, created_after="9999-12-31T23:59:59Z") == []
        assert self.ids(client, created_before="0001-01-01T00:00:00") == []
        assert len(self.ids(client, created_after="0001-01-01T00:00:00+23:59")) == 3


@on_both
class TestGetJob:
    def test_a_running_job(self, server: Server) -> None:
        job_id = add_job(
            server.database,
            state=JobState.RUNNING,
            stage=Stage.TRAIN,
            phase="training",
            progress={"step": 30, "of": 90, "epoch": 1.0, "loss": "nan", "eta_seconds": 12.5},
            last_metrics={"loss": "inf"},
            epoch=3,
            stage_attempt=2,
            worker_id="w-1",
            mlflow_experiment_id="3",
            mlflow_run_id="abc",
            results={"prepare": {"model_revision": "c0ffee", "splits": {"train": {"examples": 9}}}},
        )
        with server.database.write() as session:
            for epoch, stage, start, end, outcome in [
                (1, "prepare", 0, 5, "finished"),
                (2, "train", 6, 16, "lost"),
                (3, "train", 20, None, None),
            ]:
                session.add(
                    AttemptRow(
                        job_id=job_id,
                        epoch=epoch,
                        stage=stage,
                        number=1,
                        worker_id="w-1",
                        started_at=START + timedelta(seconds=start),
                        ended_at=START + timedelta(seconds=end) if end else None,
                        outcome=outcome,
                    )
                )
        job = server.client.get(f"/v1/jobs/{job_id}").json()
        assert job["progress"] == {
            "step": 30,
            "of": 90,
            "percent": 33.3,
            "epoch": 1.0,
            "loss": "nan",
            "examples_per_second": None,
            "eta_seconds": 12.5,
        }
        assert (job["phase"], job["attempt"], job["worker"]) == ("training", 2, "w-1")
        assert job["queue_position"] is None
        run = "http://mlflow.test:5000/#/experiments/3/runs/abc"
        assert job["mlflow_url"] == f"{run}?workflowType=machine_learning"
        assert [
            (stage["stage"], stage["attempts"], stage["outcome"], stage["running_seconds"])
            for stage in job["stages"]
        ] == [
            ("prepare", 1, "finished", 5.0),
            ("train", 2, None, 10.0),
            ("publish", 0, None, 0.0),
        ]
        assert job["stages"][1]["started_at"] == "2026-01-01T00:00:06Z"
        assert job["stages"][1]["ended_at"] is None
        assert job["result"]["model_revision"] == "c0ffee"

    def test_a_finished_job(self, server: Server) -> None:
        job_id = add_job(
            server.database,
            state=JobState.SUCCEEDED,
            stage=Stage.PUBLISH,
            ended_at=START,
            results={
                "train": {
                    "output_dir": "attempts/2/output",
                    "metrics": {"f1": 80.5, "loss": "nan"},
                    "baseline": {"f1": 5.0},
                    "steps": 90,
                    "epochs": 3.0,
                    "weights_sha256": "ab",
                    "samples": [{"question": "?", "score": 0.5}],
                },
                "publish": {"hub_url": "https://hub.test/a/b", "hub_commit": "dead"},
            },
        )
        job = server.client.get(f"/v1/jobs/{job_id}").json()
        result = job["result"]
        assert (result["metrics"], result["baseline"]) == ({"f1": 80.5, "loss": "nan"}, {"f1": 5.0})
        path = server.settings.home / "jobs" / job_id / "attempts" / "2" / "output"
        assert result["model_path"] == str(path)
        assert result["samples"] == [{"question": "?", "score": 0.5}]
        assert (job["hub_url"], result["hub_commit"]) == ("https://hub.test/a/b", "dead")

    def test_a_failed_job_says_what_to_do(self, server: Server) -> None:
        failure = Failure.from_code(FailureCode.EMPTY_DATASET, "nothing", rows=0).model_dump(
            mode="json"
        )
        job_id = add_job(server.database, state="failed", failure=failure, ended_at=START)
        shown = server.client.get(f"/v1/jobs/{job_id}").json()["failure"]
        assert shown == failure
        assert shown["action"].startswith("Check the slices")


class TestCancelJob:
    def test_a_waiting_job_is_cancelled_at_once(self, client: httpx.Client) -> None:
        job_id = client.post("/v1/jobs", json=SPEC).json()["id"]
        assert client.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "cancelled"
        again = client.post(f"/v1/jobs/{job_id}/cancel")
        assert (again.status_code, again.json()["code"]) == (409, "job_ended")
        assert again.headers["x-should-retry"] == "false"

    def test_unknown(self, client: httpx.Client) -> None:
        assert client.post("/v1/jobs/job-00/cancel").status_code == 404
