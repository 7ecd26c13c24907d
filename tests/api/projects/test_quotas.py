"""What a project over one of its quotas is answered, and its usage."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.api.http.token_bucket import Bucket
from service.contract.roles import Role
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.projects import keys
from service.store.projects.keys import Grant
from service.store.scheduling import registration
from tests.api.conftest import Server, code, running, upload
from tests.api.factories import SPEC
from tests.support.factories import claim_job
from tests.support.store.job_rows import WORKER, put
from tests.support.store.projects import limit, make_job_of, make_project


class TestQueuedJobs:
    def test_fifty_posts_at_once(self, server: Server) -> None:
        limit(server.database, max_queued_jobs=7)

        def post(_: int) -> int:
            return httpx.post(f"{server.url}/v1/jobs", json=SPEC, timeout=60).status_code

        with ThreadPoolExecutor(50) as pool:
            assert Counter(pool.map(post, range(50))) == {201: 7, 429: 43}
        assert len(server.client.get("/v1/jobs?limit=100").json()["data"]) == 7

    def test_a_retry_needs_room_too(self, server: Server) -> None:
        job_id = make_job_of(server.database, "default")
        put(server.database, job_id, state="failed", stage="prepare")
        limit(server.database, max_queued_jobs=0)
        answer = server.client.post(f"/v1/jobs/{job_id}/retry")
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (429, "quota_exceeded")
        assert (problem["quota"], problem["limit"], problem["used"]) == ("max_queued_jobs", 0, 0)
        assert answer.headers["Retry-After"] == "30"


class TestValidation:
    """It says what POST would say at the same moment."""

    def posted(self, server: Server, spec: dict[str, Any], status: int) -> dict[str, Any]:
        answer = server.client.post("/v1/jobs", json=spec)
        assert answer.status_code == status
        problem: dict[str, Any] = answer.json()
        return {"code": problem["code"], "message": problem["detail"]}

    def faults(self, server: Server, spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
        checked = server.client.post("/v1/jobs/validate", json=spec).json()
        assert (checked["valid"], checked["spec"]) == (False, None)
        return {
            fault["path"]: {name: fault[name] for name in ("code", "message")}
            for fault in checked["errors"]
        }

    def test_a_more_urgent_priority(self, server: Server) -> None:
        limit(server.database, highest_priority=6)
        spec = {**SPEC, "priority": 5}
        posted = self.posted(server, spec, 422)
        assert self.faults(server, spec) == {"priority": posted}
        assert posted["message"] == (
            "The project may ask for priority 6 at most (0 is the most urgent); `priority` is 5."
        )

    def test_without_a_priority_it_is_the_nearest(self, server: Server) -> None:
        limit(server.database, highest_priority=6)
        checked = server.client.post("/v1/jobs/validate", json=SPEC).json()
        assert (checked["valid"], checked["spec"]["priority"]) == (True, 6)
        made = server.client.post("/v1/jobs", json=SPEC).json()
        assert made["spec"]["priority"] == 6

    def test_a_full_queue(self, server: Server) -> None:
        limit(server.database, max_queued_jobs=1)
        assert server.client.post("/v1/jobs/validate", json=SPEC).json()["valid"]
        assert server.client.post("/v1/jobs", json=SPEC).status_code == 201
        assert self.faults(server, SPEC) == {"": self.posted(server, SPEC, 429)}

    def test_an_archived_project(self, server: Server) -> None:
        limit(server.database, archived_at=db_now())
        assert self.faults(server, SPEC) == {"": self.posted(server, SPEC, 409)}

    def test_of_the_project_that_the_request_names(self, server: Server) -> None:
        make_project(server.database, "search", max_queued_jobs=0)
        for project, valid in (("search", False), ("default", True)):
            headers = {"FineTune-Project": project}
            checked = server.client.post("/v1/jobs/validate", json=SPEC, headers=headers)
            assert checked.json()["valid"] is valid

    def test_faults_of_the_spec_come_first(self, server: Server) -> None:
        limit(server.database, max_queued_jobs=0)
        assert list(self.faults(server, {**SPEC, "name": 1})) == ["name"]


class TestBytes:
    def test_an_upload_without_room(self, server: Server) -> None:
        limit(server.database, max_bytes=1000)
        assert upload(server.client, b"x" * 600).status_code == 200
        answer = upload(server.client, b"x" * 600)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (413, "quota_exceeded")
        assert (problem["quota"], problem["limit"], problem["used"]) == ("max_bytes", 1000, 600)
        files = [path.name for path in server.settings.files_dir.iterdir()]
        assert len(files) == 1

    def test_what_is_announced_too_large_is_not_received(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def receive(*_: object) -> None:
            raise AssertionError

        limit(server.database, max_bytes=1000)
        monkeypatch.setattr("service.api.files.upload.receive", receive)
        assert code(upload(server.client, b"x" * 200_000)) == (413, "quota_exceeded")


class TestGpus:
    def test_a_job_over_the_quota_says_so(self, server: Server) -> None:
        with server.database.write() as session:
            gpus = [{"type": "cuda", "index": n, "uuid": f"GPU-{n}"} for n in range(4)]
            registration.register(session, replace(WORKER, devices=gpus, slots=4))
        limit(server.database, max_gpus=0)
        job_id = make_job_of(server.database, "default", gpus=1)
        waiting = server.client.get(f"/v1/jobs/{job_id}").json()["waiting"]
        assert waiting["reason"] == "over_quota"
        assert "may have 0" in waiting["message"]
        limit(server.database, max_gpus=1)
        waiting = server.client.get("/v1/jobs").json()["data"][0]["waiting"]
        assert waiting["reason"] != "over_quota"


class TestRate:
    def test_a_project_that_asks_too_often(
        self, api_settings: Settings, database: Database
    ) -> None:
        make_project(database, "busy", max_requests_per_second=1)
        with database.write() as session:
            _, theirs = keys.create(session, "theirs", Grant("busy", Role.VIEWER))
            _, ours = keys.create(session, "ours", Grant("default", Role.VIEWER))
        closed = api_settings.model_copy(update={"auth": "required"})
        with running(closed) as url, httpx.Client(base_url=url, timeout=30, verify=False) as client:

            def ask(key: str) -> httpx.Response:
                return client.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})

            answers = [ask(theirs) for _ in range(5)]
            assert [answer.status_code for answer in answers][:1] == [200]
            refused = [answer for answer in answers if answer.status_code == 429]
            assert refused
            assert refused[0].json()["code"] == "quota_exceeded"
            assert refused[0].headers["Retry-After"] == "1"
            assert [ask(ours).status_code for _ in range(5)] == [200] * 5


class TestBucket:
    def test_a_seconds_worth_at_once_and_then_at_the_rate(self) -> None:
        bucket = Bucket()
        assert [bucket.take(2, 10.0) for _ in range(3)] == [0, 0, 0.5]
        assert bucket.take(2, 10.5) == 0
        assert bucket.take(2, 10.6) == pytest.approx(0.4)
        assert [bucket.take(2, 99.0) for _ in range(3)] == [0, 0, 0.5]

    def test_less_than_one_a_second(self) -> None:
        bucket = Bucket()
        assert bucket.take(0.1, 0.0) == 0
        assert bucket.take(0.1, 0.0) == pytest.approx(10)
        assert bucket.take(0.1, 10.0) == 0


class TestUsage:
    def test_by_project_and_day(self, server: Server) -> None:
        make_project(server.database, "other")
        claim_job(server.database, make_job_of(server.database, "other"))
        assert upload(server.client, b"x" * 10).status_code == 200
        found = server.client.get("/v1/usage").json()["data"]
        assert [(day["project"], day["bytes_stored"]) for day in found] == [
            ("default", 10),
            ("other", 0),
        ]
        assert found[1]["worker_seconds"] > 0
        own = server.client.get("/v1/usage?project=other").json()["data"]
        assert [day["project"] for day in own] == ["other"]
        assert server.client.get("/v1/usage?to=2020-01-01").json()["data"] == []
        assert server.client.get("/v1/usage?project=none").status_code == 404
