"""POST /v1/jobs/preview: validated like a job, waited for, and not in the way of others."""

import time
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from service.api.http.limits import Waiters
from service.api.interactive import previews
from service.contract.failures import Failure, FailureCode
from service.contract.interactive.previews import PreviewResult
from service.store.tables.jobs import JobRow
from service.store.tables.teams import AuditRow
from tests.api.conftest import Server, code
from tests.api.factories import spec
from tests.support.factories import claim_job, make_job
from tests.support.store.previews import made_by_thread, register_worker

FOUND = PreviewResult.model_validate(
    {
        "rows_limit": 5,
        "splits": {
            "train": {
                "rows_read": 5,
                "rows_usable": 4,
                "rows_bad": 1,
                "bad_by_reason": {"empty_text": 1},
                "bad_rows": [{"place": "a, line 2", "reason": "empty_text", "problem": "is empty"}],
                "is_whole": True,
                "realigned": 2,
                "tokens": {
                    **dict.fromkeys(("total", "min", "p50", "p90", "p95", "p99", "max"), 4),
                    "mean": 4.0,
                    "histogram": [{"from": 4, "to": 4, "rows": 4}],
                },
            }
        },
        "examples": [
            {
                "split": "train",
                "text": "a b",
                "tokens": ["a", " b"],
                "length": 2,
                "trained": [{"start": 1, "end": 2, "text_start": 1, "text_end": 3}],
                "target": "b",
            }
        ],
    }
)


def post(client: httpx.Client, body: Any = None, **query: Any) -> httpx.Response:
    return client.post("/v1/jobs/preview", json=spec() if body is None else body, params=query)


@pytest.fixture
def no_room_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that are started afterwards."""
    monkeypatch.setattr(previews, "MOST_WAITING", 0)


def test_the_request_waits_for_the_worker(server: Server) -> None:
    register_worker(server.database)
    with made_by_thread(server.database, FOUND):
        answer = post(server.client, rows=5, shown=1)
    body = answer.json()
    assert (answer.status_code, body["state"], body["failure"]) == (200, "succeeded", None)
    assert (body["rows"], body["shown"], body["waiting"]) == (5, 1, None)
    train = body["result"]["splits"]["train"]
    assert train["tokens"]["histogram"] == [{"from": 4, "to": 4, "rows": 4}]
    assert (train["realigned"], train["rows_estimated"]) == (2, None)
    assert body["result"]["examples"][0]["trained"][0]["text_start"] == 1
    again = server.client.get(answer.headers["Location"])
    assert (again.status_code, again.json()) == (200, body)


def test_a_job_s_failure_is_part_of_the_answer(server: Server) -> None:
    register_worker(server.database)
    failure = Failure.from_code(FailureCode.MISSING_COLUMN, "no column")
    with made_by_thread(server.database, FOUND.model_copy(update={"failure": failure})):
        body = post(server.client).json()
    assert (body["state"], body["failure"]["code"]) == ("failed", "missing_column")
    assert body["failure"]["action"]
    assert body["result"]["splits"]["train"]["rows_bad"] == 1


class TestUnfinished:
    def test_without_a_worker_no_request_waits(self, server: Server) -> None:
        answer = post(server.client, wait=60)
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        assert answer.json()["waiting"].startswith("no live worker serves the queue `cpu`")
        assert server.client.get(answer.headers["Location"]).json() == answer.json()

    def test_while_all_are_busy_no_request_waits(self, server: Server) -> None:
        register_worker(server.database)
        claim_job(server.database, make_job(server.database), "worker-1")
        busy = post(server.client, wait=60).json()
        assert (busy["state"], busy["waiting"]) == (
            "queued",
            "every worker that makes previews is busy: `finetune worker --queues preview` starts "
            "one for them alone",
        )
        register_worker(server.database, "worker-2", "preview")
        assert server.client.get(f"/v1/previews/{busy['id']}").json()["waiting"] is None

    def test_the_wait_has_an_end(self, server: Server) -> None:
        register_worker(server.database)
        answer = post(server.client, wait=0.2)
        assert (answer.status_code, answer.json()["result"]) == (202, None)

    def test_when_too_many_requests_wait_the_next_does_not(
        self, no_room_to_wait: None, server: Server
    ) -> None:
        register_worker(server.database)
        begun = time.monotonic()
        answer = post(server.client, wait=60)
        assert (answer.status_code, answer.json()["waiting"]) == (202, None)
        assert time.monotonic() - begun < 30

    def test_a_project_may_have_four(self, server: Server) -> None:
        statuses = [post(server.client, wait=0).status_code for _ in range(5)]
        assert statuses == [202, 202, 202, 202, 429]
        refused = post(server.client, wait=0)
        assert refused.json()["code"] == "too_many_previews"
        assert refused.headers["Retry-After"] == "2"

    def test_nothing_else_is_made(self, server: Server) -> None:
        post(server.client, wait=0)
        with server.database.read() as session:
            counts = [
                session.scalar(select(func.count()).select_from(t)) for t in (JobRow, AuditRow)
            ]
        assert counts == [0, 0]


class TestRefusals:
    def test_a_wrong_spec_has_the_faults_of_a_job(self, client: httpx.Client) -> None:
        wrong = spec(training={"learning_rte": 1}, dataset={"source": "upload", "train": "file-0"})
        answer = post(client, wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")
        assert answer.json()["errors"] == client.post("/v1/jobs", json=wrong).json()["errors"]

    def test_parameters_have_bounds(self, client: httpx.Client) -> None:
        few: tuple[dict[str, Any], ...] = ({"rows": 0}, {"rows": 1001}, {"shown": 21}, {"wait": 61})
        for query in (*few, {"wait": "nan"}, {"n": 1}):
            assert post(client, **query).json()["code"] == "invalid_request", query

    def test_an_unknown_id(self, client: httpx.Client) -> None:
        for preview_id in ("preview-0199a0b1c2d3", "preview-%00", "job-1"):
            assert code(client.get(f"/v1/previews/{preview_id}")) == (404, "preview_not_found")


class TestWaiters:
    def test_no_more_than_there_is_room_for(self) -> None:
        waiters = Waiters(1)
        with waiters.take() as first, waiters.take() as second:
            assert (first, second) == (True, False)
        with waiters.take() as again:
            assert again
