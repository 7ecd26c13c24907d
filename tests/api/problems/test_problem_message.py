"""The one line of a problem that a client prints."""

from typing import Any

import httpx
import pytest

from service.api.problems.message import message_of
from service.api.schemas.problems import Problem
from tests.api.factories import spec


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


def fault(number: int, message: str = "unknown field") -> dict[str, Any]:
    return {"path": f"training.field_{number}", "message": message}


class TestMessageOf:
    @pytest.mark.parametrize(
        ("title", "detail", "expected"),
        [
            ("Job not found", "There is no job 'x'.", "Job not found. There is no job 'x'."),
            ("Not ready", "broker unreachable.", "Not ready: broker unreachable."),
            ("Gone", "", "Gone"),
            ("The job has ended", "The job has ended: failed.", "The job has ended: failed."),
        ],
    )
    def test_of_title_and_detail(self, title: str, detail: str, expected: str) -> None:
        assert message_of(title, detail) == expected

    def test_names_each_fault(self) -> None:
        assert message_of("Invalid spec", "", [fault(1)]) == (
            "Invalid spec: 1 error: training.field_1: unknown field"
        )
        assert message_of(
            "Invalid spec: 2 errors", "", [fault(1), {"path": "", "message": "x"}]
        ) == ("Invalid spec: 2 errors: training.field_1: unknown field; x")

    def test_many_or_long_faults_stay_one_bounded_line(self) -> None:
        many = message_of("Invalid spec", "", [fault(number) for number in range(7)])
        assert many.startswith("Invalid spec: 7 errors: training.field_0: unknown field; ")
        assert many.endswith("training.field_4: unknown field; and 2 more")
        long = message_of("Invalid spec", "", [fault(1, "a\nb" * 5000)] * 100)
        assert "\n" not in long
        assert len(long) < 2000
        assert len(message_of("Gone", "a" * 5000)) == 2000

    def test_the_example_of_the_document_is_what_is_answered(self) -> None:
        example: dict[str, Any] = Problem.model_json_schema()["examples"][0]
        made = message_of(example["title"], example["detail"], example["errors"])
        assert example["message"] == made


class TestAnswers:
    @pytest.mark.parametrize(
        ("method", "path", "expected"),
        [
            ("GET", "/v1/jobs/job-00", "Job not found. There is no job 'job-00'."),
            (
                "GET",
                "/v1/job",
                "The path does not exist. There is no /v1/job; /openapi.json describes all paths.",
            ),
            (
                "DELETE",
                "/v1/tasks",
                "The path does not allow this method: /v1/tasks does not allow DELETE; use GET.",
            ),
        ],
    )
    def test_say_what_is_wrong(
        self, client: httpx.Client, method: str, path: str, expected: str
    ) -> None:
        assert client.request(method, path).json()["message"] == expected

    def test_of_a_wrong_spec_name_its_faults(self, client: httpx.Client) -> None:
        body = spec(training={"learning_rte": 1, "seed": "x"})
        message = client.post("/v1/jobs", json=body).json()["message"]
        assert "2 errors: training.learning_rte: unknown field; did you mean" in message
        assert "`learning_rate`" in message
        assert "training.seed: " in message
