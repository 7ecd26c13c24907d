"""The OpenAPI document: names that a generated client can use, and examples that are true."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest

from service.api.openapi.document import EXAMPLE_JOBS
from service.contract.spec.spec import JobSpec
from service.contract.tasks.tasks import TASKS
from service.store.tables.jobs import JobRow
from tests.api.conftest import Server
from tests.api.factories import SPEC, add_job, spec
from tests.support.openapi import document

Json = dict[str, Any]
ErrorsOf = Callable[[Json, Any], list[str]]
SHORT_FORMS: list[Json] = [
    *({"task": task} for task in TASKS),
    {"dataset": {"source": "upload", "train": "file-0", "validation": "file-1"}},
    {"dataset": {"source": "upload", "train": "file-0", "validation": {"a": "file-1"}}},
    {"dataset": {"source": "path", "train": "/a", "test": "/b"}},
    {"mode": "predict", "dataset": {"source": "upload", "test": "file-0"}},
    {"resources": {"strategy": "fsdp"}},
]
VERBS = (
    "add cancel change check clone complete create delete extend get list pause predict preview "
    "promote publish read remove replay resume retry revoke rotate send set stream validate"
)
OLD_IDS = (
    "cancel_job check_file clone_job create_file create_job delete_file delete_job get_artifact "
    "get_checkpoint get_checkpoint_archive get_checkpoint_file get_file get_file_content get_job "
    "list_artifacts list_checkpoints list_events list_files list_jobs list_metrics list_tasks "
    "list_workers pause_job promote_checkpoint publish_job read_logs resume_job retry_job "
    "validate_job"
)


@pytest.fixture(name="document", scope="module")
def _document() -> Json:
    return document()


def schemas_in(value: Any, place: str = "") -> Iterator[tuple[str, Json]]:
    """Every object of the document with its place, the deepest last."""
    if isinstance(value, dict):
        yield place, value
        for key, inner in value.items():
            if key not in {"example", "examples", "default"}:
                yield from schemas_in(inner, f"{place}/{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from schemas_in(inner, f"{place}/{number}")


def examples_in(document: Json) -> Iterator[tuple[str, Json, Any]]:
    """Place, schema and value of every example and default."""
    for place, part in schemas_in(document):
        if place.endswith("/properties"):  # one of them may be called `examples`
            continue
        schema = part.get("schema", part)
        named = part.get("examples", ())
        for value in named.values() if isinstance(named, dict) else named:
            yield place, schema, value["value"] if isinstance(named, dict) else value
        for key in ("example", "default"):
            if key in part and not place.endswith("/mapping"):
                yield f"{place}/{key}", schema, part[key]


@pytest.fixture(scope="module")
def errors_of(document: Json) -> ErrorsOf:
    """What is wrong with a value by a schema of the document, which is read once for all."""

    def absolute(schema: Json) -> Any:
        return json.loads(json.dumps(schema).replace('"$ref": "#', '"$ref": "urn:document#'))

    registry = jsonschema_rs.Registry([("urn:document", absolute(document))])

    def errors(schema: Json, value: Any) -> list[str]:
        checks = jsonschema_rs.Draft202012Validator(absolute(schema), registry=registry)
        return [error.message for error in checks.iter_errors(value)]

    return errors


class TestOperations:
    def test_have_ids_of_a_verb_and_a_noun(self, document: Json) -> None:
        ids = [part["operationId"] for _, part in schemas_in(document) if "operationId" in part]
        assert len(ids) == len(set(ids))
        assert all(each.partition("_")[0] in VERBS.split() and "_" in each for each in ids), ids
        assert set(OLD_IDS.split()) <= set(ids)
        paths = document["paths"]
        assert paths["/health/live"]["get"]["operationId"] == "get_liveness"
        assert paths["/health/ready"]["get"]["operationId"] == "get_readiness"
        assert paths["/metrics"]["get"]["operationId"] == "get_prometheus_metrics"

    def test_declare_their_errors(self, document: Json) -> None:
        for path, operations in document["paths"].items():
            for operation in operations.values():
                assert operation["summary"], path
                codes = set(operation["responses"])
                assert path.startswith("/health/") or {"401", "503"} <= codes, path


class TestModels:
    def test_unions_have_only_named_members(self, document: Json) -> None:
        anonymous = [
            place
            for place, part in schemas_in(document)
            for member in [*part.get("anyOf", ()), *part.get("oneOf", ())]
            if "enum" in member or member.get("type") == "object"
        ]
        assert anonymous == []
        training = document["components"]["schemas"]["TrainingSpec"]["properties"]
        assert training["torch_compile_mode"]["anyOf"] == [
            {"$ref": "#/components/schemas/TrainingSpecTorchCompileMode"},
            {"type": "null"},
        ]

    def test_exist_once(self, document: Json) -> None:
        names = set(document["components"]["schemas"])
        assert not {name for name in names if name.endswith(("-Input", "-Output", "1", "2"))}
        job, submitted = (
            document["components"]["schemas"][name] for name in ("Job", "SubmittedJob")
        )
        assert job["allOf"][0] == {"$ref": "#/components/schemas/JobSummary"}
        assert submitted["allOf"][0] == {"$ref": "#/components/schemas/Job"}
        assert set(submitted["allOf"][1]["properties"]) == {"ignored", "warnings"}
        assert "id" not in job["allOf"][1]["properties"]

    def test_every_reference_leads_to_one(self, document: Json) -> None:
        names = document["components"]["schemas"]
        used = {part["$ref"] for _, part in schemas_in(document) if "$ref" in part}
        assert {each.removeprefix("#/components/schemas/") for each in used} <= set(names)

    def test_a_query_parameter_is_never_null(self, document: Json) -> None:
        purpose = next(
            parameter["schema"]
            for parameter in document["paths"]["/v1/files"]["get"]["parameters"]
            if parameter["name"] == "purpose"
        )
        assert purpose["type"] == "string"
        assert "fine-tune" in purpose["enum"]

    @pytest.mark.parametrize("example", list(EXAMPLE_JOBS))
    def test_a_spec_with_its_defaults_is_what_the_job_promises(
        self, document: Json, errors_of: ErrorsOf, example: str
    ) -> None:
        stored = JobSpec.model_validate(EXAMPLE_JOBS[example]["value"]).model_dump(mode="json")
        components = document["components"]["schemas"]
        of_job = components["Job"]["allOf"][1]["properties"]["spec"]
        assert of_job["$ref"] == "#/components/schemas/JobSpec"
        assert errors_of(of_job, stored) == []
        of_validation = components["Validation"]["properties"]["spec"]
        assert of_validation["anyOf"] == [
            {"$ref": "#/components/schemas/JobSpec"},
            {"type": "null"},
        ]
        assert errors_of(of_validation, None) == []

    @pytest.mark.parametrize("change", SHORT_FORMS)
    def test_short_forms_of_a_spec_are_described(
        self, document: Json, errors_of: ErrorsOf, change: Json
    ) -> None:
        assert errors_of(document["components"]["schemas"]["JobSpec"], spec(**change)) == []

    def test_a_spec_of_an_older_release_is_answered_as_it_was_stored(self, server: Server) -> None:
        job_id = add_job(server.database)
        with server.database.write() as session:
            row = session.get_one(JobRow, job_id)
            row.spec = {**SPEC, "option_of_an_older_release": [1]}
            stored = row.spec
        assert server.client.get(f"/v1/jobs/{job_id}").json()["spec"] == stored


class TestExamples:
    def test_fit_their_schemas(self, document: Json, errors_of: ErrorsOf) -> None:
        found = list(examples_in(document))
        wrong = {
            place: errors for place, schema, value in found if (errors := errors_of(schema, value))
        }
        assert wrong == {}
        assert len(found) > 150
        places = " ".join(place for place, _, _ in found)
        assert "/paths//v1/jobs/post/requestBody/content/application/json" in places
        assert "/components/schemas/Problem" in places

    def test_of_an_error_has_the_status_that_it_is_the_example_of(self, document: Json) -> None:
        schemas = document["components"]["schemas"]
        assert schemas["Problem"]["examples"][0]["status"] == 422
        seen = set()
        for operations in document["paths"].values():
            for operation in operations.values():
                for status, response in operation["responses"].items():
                    content = response.get("content", {}).get("application/problem+json")
                    if content is not None and status != "422":
                        example = content["example"]
                        assert example["status"] == int(status)
                        assert example["message"].startswith(example["title"])
                        seen.add(status)
        assert {"400", "401", "404", "409", "410", "413", "415", "416", "429", "503"} <= seen
