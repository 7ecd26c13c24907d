"""Errors as OpenAI's clients take them apart."""

from typing import Any

import pytest

from service.api.openai import errors
from service.api.schemas.problems import Problem
from tests.api.conftest import Server


def _problem(status: int, code: str, **more: object) -> Problem:
    return Problem.model_validate(
        {
            "type": f"urn:finetune:problem:{code}",
            "title": "Title",
            "status": status,
            "detail": "Detail.",
            "message": "Title: Detail.",
            "code": code,
            "instance": "/v1/models/x",
            "request_id": "r",
            **more,
        }
    )


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "unauthorized", ("authentication_error", "invalid_api_key")),
        (403, "forbidden", ("permission_error", "forbidden")),
        (404, "job_not_found", ("invalid_request_error", "job_not_found")),
        (409, "invalid_transition", ("invalid_request_error", "invalid_transition")),
        (422, "invalid_spec", ("invalid_request_error", "invalid_spec")),
        (429, "rate_quota", ("rate_limit_error", "rate_quota")),
        (500, "internal", ("server_error", "internal")),
        (503, "overloaded", ("server_error", "overloaded")),
    ],
)
def test_type_and_code_follow_from_the_problem(
    status: int, code: str, expected: tuple[str, str]
) -> None:
    found = errors.envelope(_problem(status, code))
    assert found == {
        "message": "Title: Detail.",
        "type": expected[0],
        "param": None,
        "code": expected[1],
    }


def test_param_is_the_first_field_that_is_wrong() -> None:
    faults = [
        {"path": "body.purpose", "code": "missing_field", "message": "required"},
        {"path": "body.file", "code": "missing_field", "message": "required"},
    ]
    assert errors.envelope(_problem(422, "invalid_request", errors=faults))["param"] == "purpose"


def test_the_document_has_the_envelope_for_paths_of_openai_alone() -> None:
    def operations() -> dict[str, Any]:
        codes = ("200", "422", "503")
        both = {code: {"description": code, "content": code} for code in ("400", *codes)}
        return {
            "get": {"responses": {c: {"description": c} for c in codes}},
            "post": {"responses": both},
        }

    document: dict[str, Any] = {"paths": {"/v1/jobs": operations(), "/v1/models": operations()}}
    errors.describe(document)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIError"}}}
    refused, full = ({"description": code, "content": content} for code in ("422", "503"))
    assert document["paths"] == {
        "/v1/jobs": operations(),
        "/v1/models": {
            "get": {"responses": {"200": {"description": "200"}, "400": refused, "503": full}},
            "post": {
                "responses": {
                    "200": {"description": "200", "content": "200"},
                    "400": {"description": "400", "content": content},
                    "503": full,
                }
            },
        },
    }


class TestAnswers:
    def test_a_path_of_openai_answers_with_the_envelope_alone(self, server: Server) -> None:
        answer = server.client.get("/v1/fine_tuning/none")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()) == {"error"}
        assert answer.json()["error"]["code"] == "route_not_found"

    def test_a_shared_path_answers_with_both(self, server: Server) -> None:
        answer = server.client.get("/v1/files/file-none")
        assert answer.status_code == 404
        problem = answer.json()
        assert problem["code"] == "file_not_found"
        assert problem["error"] == {
            "message": problem["message"],
            "type": "invalid_request_error",
            "param": None,
            "code": "file_not_found",
        }

    def test_a_native_path_answers_as_before(self, server: Server) -> None:
        assert "error" not in server.client.get("/v1/jobs/job-none").json()

    def test_each_answer_says_how_long_it_took(self, server: Server) -> None:
        answer = server.client.get("/v1/jobs")
        assert answer.headers["openai-processing-ms"].isdigit()
