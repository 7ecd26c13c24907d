"""The receivers in examples/webhooks, with local servers in the place of Slack and GitHub."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from examples.webhooks import ci, slack
from examples.webhooks import receiver as example
from service.webhooks import signatures
from tests.support.servers.webhooks import Receiver

SECRET = signatures.new_secret()
SUCCEEDED = {
    "id": "evt_1_2",
    "type": "job.succeeded",
    "data": {
        "id": "job-1",
        "name": "a <b> & c",
        "failure": None,
        "urls": {"job": "https://tune.example.com/v1/jobs/job-1"},
    },
}
FAILED = {
    "id": "evt_1_3",
    "type": "job.failed",
    "data": {
        "id": "job-1",
        "name": None,
        "failure": {"code": "out_of_memory", "action": "Use smaller batches."},
        "urls": {"job": "/v1/jobs/job-1"},
    },
}


@contextmanager
def running(handle: Any) -> Iterator[str]:
    server = example.Receiver(0, SECRET, handle)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(url: str, event: dict[str, Any], secret: str = SECRET) -> int:
    body = json.dumps(event)
    headers = signatures.headers(event["id"], body, [secret], datetime.now(UTC))
    return httpx.post(url, content=body, headers=headers, trust_env=False).status_code


def test_slack_has_one_message_for_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as channel, running(slack.post) as url:
        monkeypatch.setenv("SLACK_URL", channel.url)
        statuses = [send(url, event) for event in (SUCCEEDED, SUCCEEDED, FAILED)]
    assert statuses == [204, 204, 204]
    assert [json.loads(body)["text"] for _, body in channel.received] == [
        "a &lt;b&gt; &amp; c has succeeded: https://tune.example.com/v1/jobs/job-1",
        "job-1 has failed (out_of_memory). Use smaller batches.",
    ]


def test_what_slack_refused_is_posted_at_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Receiver(lambda count: 500 if count == 1 else 204) as channel,
        running(slack.post) as url,
    ):
        monkeypatch.setenv("SLACK_URL", channel.url)
        assert [send(url, SUCCEEDED), send(url, SUCCEEDED)] == [503, 204]
    assert len(channel.received) == 2


def test_a_forged_event_is_refused() -> None:
    handled: list[Any] = []
    with running(handled.append) as url:
        assert send(url, SUCCEEDED, signatures.new_secret()) == 401
        assert httpx.post(url, json=SUCCEEDED, trust_env=False).status_code == 401
        assert httpx.post(url, content=b"", trust_env=False).status_code == 413
    assert handled == []


def test_a_workflow_starts_for_a_job_that_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as github, running(ci.dispatch) as url:
        for name, value in {
            "GITHUB_API_URL": github.url,
            "GITHUB_REPOSITORY": "team/models",
            "GITHUB_TOKEN": "example",
            "WORKFLOW": "deploy.yml",
        }.items():
            monkeypatch.setenv(name, value)
        assert [send(url, SUCCEEDED), send(url, FAILED)] == [204, 204]
    [(headers, body)] = github.received
    assert headers["authorization"] == "Bearer example"
    assert json.loads(body) == {"ref": "main", "inputs": {"job": "job-1", "name": "a <b> & c"}}
