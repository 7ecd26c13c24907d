"""A client of OpenAI that repeats a create gets the job of its first attempt."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import update

from service.api.jobs import submission
from service.api.openai import fine_tuning_jobs
from service.store.jobs import create_calls
from service.store.jobs.create_calls import Attempt
from service.store.tables.jobs import CreateCallRow
from tests.api.conftest import Server, running
from tests.support.servers import services
from tests.support.store.databases import on_both

CREATE = "POST /v1/fine_tuning/jobs"
BODY: dict[str, Any] = {
    "model": "org/base",
    "training_file": None,
    "extra_body": {"dataset": {"source": "hub", "name": "org/data"}},
}
FROM_HUB: dict[str, Any] = {
    "model": "org/base",
    "dataset": {"source": "hub", "name": "org/data"},
}


def _client(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", **options)


def _ids(server: Server) -> list[str]:
    return [job["id"] for job in server.client.get("/v1/jobs").json()["data"]]


def _post(server: Server, count: int | None, **changes: Any) -> str:
    headers = {} if count is None else {"x-stainless-retry-count": str(count)}
    body = {**FROM_HUB, **changes}
    answer = server.client.post("/v1/fine_tuning/jobs", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_what_changes_nothing_is_not_noted(server: Server) -> None:
    assert _post(server, 0) == _post(server, 1)
    (entry,) = server.client.get("/v1/audit").json()["data"]
    assert entry["action"] == "create_fine_tuning_job"


def test_a_first_attempt_in_progress_makes_no_second_job(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat reaches another process of the API."""
    held, free, done = threading.Event(), threading.Event(), threading.Event()
    validate, read = fine_tuning_jobs._spec, fine_tuning_jobs._read

    def slow_first(*arguments: Any) -> Any:
        if not held.is_set():
            held.set()
            assert free.wait(30)
        return validate(*arguments)

    def noted(*arguments: Any) -> Any:
        answer = read(*arguments)
        if free.is_set():
            done.set()
        return answer

    monkeypatch.setattr(fine_tuning_jobs, "_spec", slow_first)
    monkeypatch.setattr(fine_tuning_jobs, "_read", noted)
    with running(server.settings) as other, ThreadPoolExecutor() as threads:
        first = threads.submit(_post, server, 0)
        assert held.wait(30)
        repeat = {"x-stainless-retry-count": "1"}
        answer = server.client.post(
            f"{other}/v1/fine_tuning/jobs", json=FROM_HUB, headers=repeat
        ).json()
        free.set()
        assert first.result(30) == answer["id"]
        assert done.wait(30)
    assert _ids(server) == [answer["id"]]


@on_both
def test_attempts_at_once_make_one_job(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    create, barrier = submission.create, threading.Barrier(8)

    def together(*arguments: Any, **options: Any) -> Any:
        # One that the service received only after another had made the job would be a new call.
        barrier.wait(30)
        return create(*arguments, **options)

    monkeypatch.setattr(submission, "create", together)
    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(lambda count: _post(server, count), range(8)))
    assert _ids(server) == list(made)


def test_a_first_attempt_that_arrives_slowly_makes_no_second_job(server: Server) -> None:
    """Its body arrives when the second attempt has made the job."""
    body = json.dumps(FROM_HUB).encode()
    head = (
        "POST /v1/fine_tuning/jobs HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port), 30) as first:
        first.sendall(head.encode())
        assert first.recv(1000).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        made = _post(server, 1)
        first.sendall(body)
        with HTTPResponse(first) as answer:
            answer.begin()
            assert json.load(answer)["id"] == made
    assert _ids(server) == [made]


def test_equal_calls_keep_their_own_jobs(server: Server) -> None:
    first, second = _post(server, 0), _post(server, None)
    assert first != second
    assert _post(server, 1) == second
    assert _post(server, 1) == first
    assert _post(server, 2) in (first, second)
    assert _post(server, 0) not in (first, second)
    assert _post(server, 1, suffix="other") not in _ids(server)[1:]


def test_a_repeat_is_not_validated_again_and_expires(server: Server) -> None:
    file = server.client.post(
        "/v1/files",
        files={"file": ("a.jsonl", b'{"messages":[]}\n')},
        data={"purpose": "fine-tune"},
    ).json()["id"]
    body = {"model": "org/base", "training_file": file}
    job = server.client.post("/v1/fine_tuning/jobs", json=body).json()["id"]
    assert server.client.post(f"/v1/jobs/{job}/cancel").status_code == 200
    assert server.client.delete(f"/v1/files/{file}").status_code == 200
    repeat = {"x-stainless-retry-count": "1"}
    found = server.client.post("/v1/fine_tuning/jobs", json=body, headers=repeat)
    assert found.json()["id"] == job
    with server.database.write() as session:
        late = timedelta(seconds=create_calls.REPEATED_WITHIN_SECONDS + 1)
        session.execute(update(CreateCallRow).values(last_at=datetime.now(UTC) - late))
    later = {"x-stainless-retry-count": "2"}
    missing = server.client.post("/v1/fine_tuning/jobs", json=body, headers=later)
    assert missing.json()["error"]["param"] == "training_file"
    for wrong in ("-1", "x", "1e9", "9" * 30):
        headers = {"x-stainless-retry-count": wrong}
        refused = server.client.post("/v1/fine_tuning/jobs", json=body, headers=headers)
        assert refused.status_code == 400
        assert "x-stainless-retry-count" in refused.json()["error"]["message"]


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "began", "joins"),
    [
        (3, NOW, True),  # the next attempt
        (2, NOW, False),  # another call
        (1, NOW, False),
        (0, NOW - timedelta(seconds=1), True),  # a slow attempt, overtaken by this call
        (0, NOW + timedelta(seconds=1), False),  # a new call
    ],
)
def test_which_attempts_are_of_a_call(count: int, began: datetime, joins: bool) -> None:
    call = CreateCallRow(job_id="job-1", first_count=1, last_count=2, created_at=NOW)
    found = create_calls._call_of(Attempt("", count, began), [call])
    assert (found is call) is joins


KILLED = """
import os, signal, sys
import uvicorn
from service.api import app
from service.api.openai import fine_tuning_jobs
from service.settings import Settings

read = fine_tuning_jobs._read
def killed(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "killed":
    fine_tuning_jobs._read = killed
uvicorn.run(app.create_app(Settings()), port=int(sys.argv[1]), log_level="error")
"""


@pytest.fixture
def variables(server: Server) -> dict[str, str]:
    settings = server.settings
    assert settings.database_url is not None
    assert settings.redis_url is not None
    return {
        **os.environ,
        "FINETUNE_HOME": str(settings.home),
        "FINETUNE_AUTH": "off",
        "FINETUNE_DATABASE_URL": settings.database_url.get_secret_value(),
        "FINETUNE_REDIS_URL": settings.redis_url.get_secret_value(),
    }


@pytest.mark.usefixtures("processes")
@pytest.mark.heavy
def test_a_service_killed_before_its_answer_makes_one_job(
    server: Server, variables: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "serve.py"
    script.write_text(KILLED)
    port = services.free_port()

    def start(mode: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(port), mode], env=variables)

    first = start("killed")
    url = f"http://127.0.0.1:{port}"
    with _client(url, max_retries=8) as client, ThreadPoolExecutor() as threads:
        services.wait_until(lambda: _answers(server, url), 60, "the API")
        waiting = threads.submit(client.fine_tuning.jobs.create, **BODY)
        assert first.wait(60) == -signal.SIGKILL
        (made,) = _ids(server)
        second = start("well")
        try:
            assert waiting.result(60).id == made
        finally:
            second.terminate()
            second.wait(60)
    assert _ids(server) == [made]


def _answers(server: Server, url: str) -> bool:
    try:
        return server.client.get(f"{url}/health/live").status_code == 200
    except Exception:
        return False
