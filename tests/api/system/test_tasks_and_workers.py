"""GET /v1/tasks and GET /v1/workers."""

from datetime import timedelta

import httpx
import pytest

from service.contract.tasks.tasks import TASKS
from service.store.database import clock
from service.store.scheduling import registration
from service.store.scheduling.registration import WorkerInfo
from service.store.tables.workers import WorkerRow
from tests.api.conftest import Server
from tests.api.factories import add_job


class TestTasksAndWorkers:
    def test_tasks(self, client: httpx.Client) -> None:
        answer = client.get("/v1/tasks").json()
        assert [task["type"] for task in answer["data"]] == list(TASKS)
        task = answer["data"][0]
        assert task["parameters_schema"]["required"][0] == "type"
        assert task["defaults"]["max_seq_length"] == 384
        assert task["parameters_schema"]["properties"]["doc_stride"]["default"] == 128
        assert [column["name"] for column in task["columns"]][:2] == ["question", "context"]
        assert answer["training_defaults"]["learning_rate"] == 5e-5
        tasks = {task["type"]: task for task in answer["data"]}
        columns = {name: [c["name"] for c in task["columns"]] for name, task in tasks.items()}
        assert columns["text-classification"] == ["text", "text_pair", "label"]
        assert columns["token-classification"] == ["tokens", "tags"]
        assert tasks["causal-lm"]["greater_is_better"] == {
            "loss": False,
            "perplexity": False,
            "accuracy": True,
        }
        assert tasks["translation"]["greater_is_better"]["gen_len"] is None
        assert all(list(t["greater_is_better"]) == t["metrics"] for t in tasks.values())
        assert tasks["text-classification"]["defaults"]["problem_type"] is None
        assert tasks["token-classification"]["defaults"]["label_all_tokens"] is False

    def test_workers_are_those_heard_of_lately(self, server: Server) -> None:
        job_id = add_job(server.database, state="running", stage="train", worker_id="w-live")
        with server.database.write() as session:
            for name, age in [("w-live", 5), ("w-dead", 3 * server.settings.beat_seconds + 1)]:
                info = WorkerInfo(name, "host", 7, ["gpu"], [{"type": "cpu", "name": "x"}], "1")
                registration.register(session, info)
                seen = clock(session) - timedelta(seconds=age)
                session.get_one(WorkerRow, name).last_seen_at = seen
        (worker,) = server.client.get("/v1/workers").json()["data"]
        assert (worker["id"], worker["devices"]) == ("w-live", [{"type": "cpu", "name": "x"}])
        assert worker["jobs"] == [{"id": job_id, "name": None, "stage": "train"}]
        assert worker["doctor"] is None

    @pytest.mark.parametrize("packages", [None, ["bitsandbytes"]])
    def test_a_worker_shows_its_packages(self, server: Server, packages: list[str] | None) -> None:
        info = WorkerInfo("w", "host", 7, ["gpu"], [], "1", packages=packages)
        with server.database.write() as session:
            registration.register(session, info)
        (worker,) = server.client.get("/v1/workers").json()["data"]
        assert worker["packages"] == packages

    def test_a_worker_shows_what_its_doctor_found(self, server: Server) -> None:
        info = WorkerInfo("w", "host", 7, ["gpu"], [], "1")
        finding = {"name": "driver", "status": "failed", "summary": "old", "reason": "550 < 580"}
        doctor = {
            "status": "failed",
            "checked_at": "2026-01-01T00:00:00Z",
            "findings": [{**finding, "remedy": "Install 580."}],
        }
        with server.database.write() as session:
            registration.register(session, info)
            registration.examined(session, "w", doctor)
        (worker,) = server.client.get("/v1/workers").json()["data"]
        assert worker["doctor"] == doctor
