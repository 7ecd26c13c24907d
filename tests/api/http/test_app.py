"""The process as a whole: start, imports, problems, limits, request ids, the document."""

import json
import socket
import time
from itertools import count as numbers
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import Column, MetaData, String, Table, select

from service.api.http.middleware import MOST_BODY_BYTES
from service.contract.states import JobState
from service.settings import Settings
from service.store import schema
from service.store.jobs import claims
from tests.api.conftest import Server, running
from tests.api.factories import SPEC
from tests.api.interactive.first_answer import first_answer
from tests.support.servers.services import free_port
from tests.support.store.job_rows import put
from tests.support.store.previews import claim_preview, make_preview
from tests.support.store.projects import make_job_of, make_project

PROBLEM = "application/problem+json"


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


@pytest.mark.usefixtures("processes")
class TestProcess:
    def test_answers_without_the_ml_stack(self, tmp_path: Path) -> None:
        # What makes it quick to start; the seconds are those of `make bench NAME=start`.
        answer = first_answer(tmp_path)
        assert answer.status == 200
        heavy = {"torch", "transformers", "accelerate", "datasets", "mlflow", "pandas", "numpy"}
        assert "fastapi" in answer.modules
        assert not heavy.intersection(answer.modules)


class TestProblems:
    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/nowhere", 404, "route_not_found"),
            ("GET", "/v1/jobs/", 404, "route_not_found"),
            ("DELETE", "/v1/jobs", 405, "method_not_allowed"),
            ("GET", "/v1/jobs/job-00", 404, "job_not_found"),
            ("GET", "/v1/jobs/%00", 404, "job_not_found"),
            ("GET", "/v1/jobs/%ff%fe/events", 404, "job_not_found"),
            ("GET", "/v1/jobs/job-00/logs", 404, "job_not_found"),
            ("GET", "/v1/jobs/job-00/artifacts/a%00b", 404, "job_not_found"),
            ("GET", "/v1/files/file-0", 404, "file_not_found"),
            ("GET", "/v1/files/%00", 404, "file_not_found"),
            ("GET", "/v1/jobs?name=%00", 422, "invalid_request"),
            ("GET", "/v1/jobs?metadata=a%00:b", 422, "invalid_request"),
            ("GET", "/v1/jobs?after=x", 422, "invalid_request"),
            ("GET", "/v1/jobs?limit=101", 422, "invalid_request"),
            ("GET", "/v1/jobs?created_after=yesterday", 422, "invalid_request"),
            ("GET", "/v1/jobs/job-00/events?after=99999999999999", 422, "invalid_request"),
        ],
    )
    def test_is_a_problem(
        self, client: httpx.Client, method: str, path: str, status: int, code: str
    ) -> None:
        answer = client.request(method, path)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (status, code)
        assert answer.headers["content-type"] == PROBLEM
        assert problem["type"] == f"urn:finetune:problem:{code}"
        assert problem["status"] == status
        assert problem["request_id"] == answer.headers["x-request-id"]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b'"\\ud800"',
            b'{"\\ud800": 1}',
            b"[" * 30_000,
            b'{"a":' * 9_000,
        ],
    )
    def test_what_is_not_json_is_400(self, client: httpx.Client, body: bytes) -> None:
        answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json")

    @pytest.mark.parametrize(
        "body",
        [
            b"[]",
            b"null",
            b"NaN",
            b'"x"',
            b'{"priority": 1e999}',
            b'{"priority": ' + b"9" * 5000 + b"}",
            b'{"training": {"learning_rate": NaN, "seed": -Infinity}}',
            b'{"training": ' + b"[" * 400 + b"]" * 400 + b"}",
            b'{"name": "a\\u0000b", "metadata": {"a": "\\u0000"}}',
        ],
    )
    def test_any_json_that_is_not_a_spec_is_422(self, client: httpx.Client, body: bytes) -> None:
        answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")

    @pytest.mark.parametrize(
        ("training", "expected"),
        [
            (f'"seed": {2**63}', "must be a whole number, at least 0 and below 4294967296"),
            ('"max_grad_norm": 1e999', "must be a number, at least 0 and at most 1000000000000"),
            (
                f'"max_steps": {10**30}',
                "must be a whole number, at least -1 and at most 2147483647",
            ),
        ],
    )
    def test_a_number_that_cannot_be_stored_gets_the_limits(
        self, client: httpx.Client, training: str, expected: str
    ) -> None:
        body = json.dumps({**SPEC, "training": {}}).replace("{}", f"{{{training}}}")
        headers = {"Content-Type": "application/json"}
        answer = client.post("/v1/jobs/validate", content=body, headers=headers)
        assert [fault["message"] for fault in answer.json()["errors"]] == [expected]

    def test_other_media_types_are_415(self, client: httpx.Client) -> None:
        answer = client.post("/v1/jobs", content=b"{}", headers={"Content-Type": "text/plain"})
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")

    def test_a_nul_where_any_text_may_stand_is_stored(self, client: httpx.Client) -> None:
        body = {**SPEC, "tracking": {"tags": {"a": "x\x00y"}}}
        answer = client.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        assert answer.json()["spec"]["tracking"]["tags"] == {"a": "x\x00y"}

    def test_database_away_is_503(self, tmp_path: Path) -> None:
        url = f"postgresql://user@127.0.0.1:{free_port()}/none"
        settings = Settings(home=tmp_path, database_url=SecretStr(url))
        with running(settings) as base:
            answer = httpx.get(f"{base}/v1/jobs", headers={"Authorization": "Bearer ft-any"})
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
            assert answer.json()["detail"] == "Try again in a moment."
            assert httpx.get(f"{base}/health/live").status_code == 200
            ready = httpx.get(f"{base}/health/ready")
        assert ready.status_code == 503
        assert ready.json()["parts"] == {
            "database": "unreachable",
            "broker": "unreachable",
            "disk": "ok",
        }


class TestBodyLimit:
    def test_announced(self, server: Server) -> None:
        body = b" " * (MOST_BODY_BYTES + 1)
        answer = server.client.post("/v1/jobs", content=body)
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert answer.json()["detail"] == "A body may have at most 1048576 bytes."

    def test_one_of_just_the_limit_is_read(self, server: Server) -> None:
        body = json.dumps(SPEC).encode().ljust(MOST_BODY_BYTES)
        headers = {"Content-Type": "application/json"}
        assert server.client.post("/v1/jobs", content=body, headers=headers).status_code == 201
        pieces = (body[at : at + 1024] for at in range(0, len(body), 1024))
        assert server.client.post("/v1/jobs", content=pieces, headers=headers).status_code == 201

    def test_counted_when_it_comes_in_chunks(self, server: Server) -> None:
        pieces = (b" " * 1024 for _ in range(MOST_BODY_BYTES // 1024 + 1))
        headers = {"Content-Type": "application/json"}
        answer = server.client.post("/v1/jobs", content=pieces, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


class TestRequestId:
    def test_is_taken_over(self, client: httpx.Client) -> None:
        answer = client.get("/health/live", headers={"X-Request-Id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        assert 0 <= int(answer.headers["openai-processing-ms"]) < 10_000

    def test_the_time_is_in_milliseconds(
        self, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = SimpleNamespace(**vars(time) | {"perf_counter": numbers(step=2).__next__})
        monkeypatch.setattr("service.api.http.middleware.time", clock)
        assert client.get("/health/live").headers["openai-processing-ms"] == "2000"

    def test_is_made_when_it_could_forge_a_log_line(self, client: httpx.Client) -> None:
        answer = client.get("/health/live", headers={"X-Request-Id": "a b"})
        assert len(answer.headers["x-request-id"]) == 32


class TestCatchAll:
    def test_no_traceback_leaves(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def explode(*_: object, **__: object) -> None:
            raise ValueError("the secret of the house")

        monkeypatch.setattr("service.store.jobs.queries.live_workers", explode)
        answer = server.client.get("/v1/workers")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "secret" not in answer.text
        assert answer.json()["detail"] == "Report it together with the request id."
        assert "request.failed" in caplog.text


class TestHealth:
    @pytest.mark.usefixtures("processes")  # a broker that answers
    def test_ready_names_its_parts_and_logs_only_the_request(
        self, client: httpx.Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = client.get("/health/ready")
        assert answer.json() == {
            "status": "ready",
            "parts": {"database": "ok", "broker": "ok", "disk": "ok"},
        }
        assert not [record for record in caplog.records if record.name.startswith("alembic")]

    @pytest.mark.parametrize(
        ("revision", "words"),
        [
            ("0000", "was made by a pre-release of finetune (revision 0000), which this release"),
            ("0.9.0", "was made by a newer release of finetune (revision 0.9.0): install that"),
            ("cc1f77", "was made by another program (revision 'cc1f77'): start with a new home"),
        ],
    )
    def test_another_schema_is_not_ready(self, server: Server, revision: str, words: str) -> None:
        version = Table("alembic_version", MetaData(), Column("version_num", String))
        with server.database.write() as session:
            current = session.scalars(select(version.c.version_num)).one()
            session.execute(version.update().values(version_num=revision))
        try:
            answer = server.client.get("/health/ready")
        finally:
            with server.database.write() as session:
                session.execute(version.update().values(version_num=current))
        assert answer.status_code == 503
        assert answer.json()["parts"]["database"].startswith(words)

    def test_an_old_schema_is_to_be_migrated(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schema, "is_current", lambda _connection: False)
        answer = server.client.get("/health/ready")
        assert answer.status_code == 503
        assert "run `finetune migrate`" in answer.json()["parts"]["database"]


class TestMetrics:
    def test_counts_jobs_and_requests_by_route(self, server: Server) -> None:
        server.client.post("/v1/jobs", json=SPEC)
        server.client.get("/v1/jobs/job-00")
        text = server.client.get("/metrics").text
        assert 'finetune_jobs{state="queued"} 1.0' in text
        assert 'finetune_queue_depth{queue="cpu"} 1.0' in text
        assert "finetune_workers 0.0" in text
        make_preview(server.database)
        claim_preview(server.database, make_preview(server.database))
        text = server.client.get("/metrics").text
        for state in ("queued", "running"):
            assert f'finetune_previews{{state="{state}"}} 1.0' in text
        route = 'method="GET",route="/v1/jobs/{job_id}",status="404"'
        assert f"finetune_http_requests_total{{{route}}} 1.0" in text
        server.client.get("/no/such/route")
        text = server.client.get("/metrics").text
        route = 'method="GET",route="unmatched",status="404"'
        assert f"finetune_http_requests_total{{{route}}} 1.0" in text

    def test_jobs_and_gpus_by_project(self, server: Server) -> None:
        make_project(server.database, "search")
        make_job_of(server.database, "search")
        held = make_job_of(server.database, "search", gpus=2)
        with server.database.write() as session:
            gpus = ["GPU-0", "GPU-1"]
            assert claims.claim(
                session, held, "worker", queues=["gpu.2"], gpus=gpus, lease_seconds=60
            )
        server.client.post("/v1/jobs", json=SPEC)
        text = server.client.get("/metrics").text
        for project, state, count in (
            ("search", "queued", 1),
            ("search", "running", 1),
            ("default", "queued", 1),
            ("default", "failed", 0),
        ):
            labels = f'project="{project}",state="{state}"'
            assert f"finetune_project_jobs{{{labels}}} {count}.0" in text
        assert 'finetune_project_gpus{project="search"} 2.0' in text
        assert 'finetune_project_gpus{project="default"} 0.0' in text
        assert 'finetune_jobs{state="queued"} 2.0' in text

    def test_projects_beyond_the_busiest_are_one(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("service.api.system.metrics.MOST_PROJECTS", 1)
        for name in ("a", "b", "c"):
            make_project(server.database, name)
        for name in ("b", "b", "a", "c"):
            make_job_of(server.database, name)
        put(server.database, make_job_of(server.database, "c"), state="failed")
        put(server.database, make_job_of(server.database, "c"), state="failed")
        lines = server.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("finetune_project_jobs{")]
        assert 'finetune_project_jobs{project="b",state="queued"} 2.0' in found
        assert 'finetune_project_jobs{project="(other)",state="queued"} 2.0' in found
        assert 'finetune_project_jobs{project="(other)",state="failed"} 2.0' in found
        assert len(found) == 2 * len(JobState)


class TestSlowClient:
    def test_half_a_request_is_dropped(self, server: Server) -> None:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(address) as connection:
            head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            body = json.dumps(SPEC)  # a whole spec, but one more byte was announced
            connection.sendall(f"{head}Content-Length: {len(body) + 1}\r\n\r\n{body}".encode())
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(30)
            assert connection.recv(1000) == b""
        assert server.client.get("/v1/jobs").json()["data"] == []
