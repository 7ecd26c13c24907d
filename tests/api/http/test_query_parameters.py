"""Query parameters that a route does not have."""

from typing import Any

import httpx
import openai
import pytest

from service.api.openai.errors import is_face
from tests.support.openapi import document


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


class TestUnknownParameters:
    @pytest.mark.parametrize(
        ("path", "name", "hint", "suggestion"),
        [
            ("/v1/jobs?stat=queued", "stat", "did you mean `state`?", "state"),
            ("/v1/jobs?per_page=5", "per_page", "did you mean `limit`?", "limit"),
            ("/v1/workers?zzz=1", "zzz", "this route takes none", None),
            (
                "/v1/jobs/job-00/events?folow=1&folow=2",
                "folow",
                "this route takes `after`, `limit`",
                None,
            ),
        ],
    )
    def test_are_refused(
        self, client: httpx.Client, path: str, name: str, hint: str, suggestion: str | None
    ) -> None:
        answer = client.get(path)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "invalid_request")
        assert problem["title"] == "Invalid request: 1 error"
        [fault] = problem["errors"]
        assert (fault["path"], fault["code"]) == (f"query.{name}", "unknown_parameter")
        assert fault["message"] == f"unknown query parameter `{name}`; {hint}"
        assert fault.get("suggestion") == suggestion

    def test_together_with_invalid_values(self, client: httpx.Client) -> None:
        query = {"stat": "queued", "limit": "many", "state": "done", "created_after": "yesterday"}
        errors = client.get("/v1/jobs", params=query).json()["errors"]
        assert sorted((fault["path"], fault["message"]) for fault in errors) == [
            ("query.created_after", "must be a time, such as 2026-01-31T12:00:00Z"),
            ("query.limit", "must be a whole number"),
            (
                "query.stat",
                "unknown query parameter `stat`; did you mean `state`?",
            ),
            (
                "query.state.0",
                "must be `queued`, `running`, `pausing`, `paused`, `cancelling`, `cancelled`, "
                "`succeeded` or `failed`",
            ),
        ]

    def test_are_bounded_and_hide_secrets(self, client: httpx.Client) -> None:
        query = {f"x{number}": "1" for number in range(500)}
        assert len(client.get("/v1/tasks", params=query).json()["errors"]) == 20
        answer = client.get("/v1/tasks", params={"token": "hf_abcdefghijklmnop"})
        assert "hf_abcdefghijklmnop" not in answer.text

    def test_probes_may_have_any(self, client: httpx.Client) -> None:
        for path in ("/health/live", "/metrics", "/docs", "/openapi.json"):
            assert client.get(path, params={"probe": "1"}).status_code == 200, path

    def test_those_of_the_openai_client_are_known(self, client: httpx.Client) -> None:
        with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="x") as theirs:
            page = theirs.files.list(after="file-1", limit=5, order="asc", purpose="fine-tune")
        assert page.data == []


def test_every_route_declares_the_answer() -> None:
    paths: dict[str, Any] = document()["paths"]
    routes = [
        (path, method)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if path.startswith("/v1/")
        and ("400" if is_face(path) else "422") not in operation["responses"]
    ]
    assert routes == []
