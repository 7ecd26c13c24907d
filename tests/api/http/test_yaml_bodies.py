"""Specs in YAML, as `curl --data-binary @spec.yaml` sends them."""

import httpx
import pytest

from tests.api.conftest import code
from tests.api.factories import SPEC

SPEC_YAML = """
# A comment
task: question-answering
model: {name_or_path: org/model}
dataset:
  source: hub
  name: org/data
training:
  learning_rate: 2e-5
  eval_strategy: no
metadata: {released: 2026-01-31, 2: "x"}
"""


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


def post(
    client: httpx.Client, text: str | bytes, path: str = "/v1/jobs", kind: str = "application/yaml"
) -> httpx.Response:
    return client.post(path, content=text, headers={"Content-Type": kind})


class TestYamlBodies:
    @pytest.mark.parametrize(
        "kind", ["application/yaml", "application/x-yaml", "text/yaml; charset=utf-8"]
    )
    def test_a_spec_has_the_values_of_json(self, client: httpx.Client, kind: str) -> None:
        answer = post(client, SPEC_YAML, kind=kind)
        job = answer.json()
        assert answer.status_code == 201, answer.text
        assert job["spec"]["training"]["learning_rate"] == 2e-5
        assert job["spec"]["training"]["eval_strategy"] == "no"
        assert job["metadata"] == {"released": "2026-01-31", "2": "x"}

    def test_a_number_in_quotes_is_read_as_in_json(self, client: httpx.Client) -> None:
        """Some writers quote it, because YAML 1.1 takes `2e-5` for text."""
        quoted = SPEC_YAML.replace("2e-5", "'2e-5'")
        answer = post(client, quoted, "/v1/jobs/validate").json()
        assert answer["spec"]["training"]["learning_rate"] == 2e-5

    def test_the_same_request_in_json_has_the_same_key(self, client: httpx.Client) -> None:
        headers = {"Idempotency-Key": "k"}
        first = client.post("/v1/jobs", json=SPEC, headers=headers)
        text = "dataset: {name: org/data, source: hub}\nmodel: {name_or_path: org/model}\n"
        again = client.post(
            "/v1/jobs",
            content=text + "task: question-answering",
            headers=headers | {"Content-Type": "application/yaml"},
        )
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])

    def test_faults_are_those_of_json(self, client: httpx.Client) -> None:
        answer = post(client, SPEC_YAML + "priorty: 1\n")
        assert answer.status_code == 422
        assert [fault["path"] for fault in answer.json()["errors"]] == ["priorty"]

    @pytest.mark.parametrize(
        ("text", "detail"),
        [
            ("a: [1\nb: 2", "the `[` of line 1, column 4 needs a `,` or its `]`."),
            ("\ta: 1", "not valid YAML: line 1, column 1: a tab: indent with spaces alone."),
            (b"a: \xff", "byte 3 is not UTF-8."),
            ('a: "\\ud800"', "a string holds half of a surrogate pair."),
            (
                "a: !!python/object/apply:os.system [x]",
                "put text that begins with `!` in quotation marks.",
            ),
            ("a: " + "9" * 5000, "line 1, column 4: the number has too many digits."),
        ],
    )
    def test_what_is_not_yaml_is_400(
        self, client: httpx.Client, text: str | bytes, detail: str
    ) -> None:
        answer = post(client, text)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (400, "invalid_yaml")
        assert problem["detail"].endswith(detail)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "just text",
            "training: {learning_rate: .nan, seed: -.inf}",
            f"priority: {'9' * 100}",
            "? task\n: question-answering\n1: 2\nnull: 3",
        ],
    )
    def test_any_yaml_that_is_not_a_spec_is_422(self, client: httpx.Client, text: str) -> None:
        assert code(post(client, text)) == (422, "invalid_spec")

    def test_a_large_body_is_413(self, client: httpx.Client) -> None:
        assert code(post(client, "a: " + "x" * 200_000)) == (413, "body_too_large")

    def test_the_document_describes_it(self, client: httpx.Client) -> None:
        paths = client.get("/openapi.json").json()["paths"]
        for path in ("/v1/jobs", "/v1/jobs/validate", "/v1/jobs/{job_id}/clone"):
            body = paths[path]["post"]["requestBody"]
            assert "`application/yaml`" in body["description"], path
