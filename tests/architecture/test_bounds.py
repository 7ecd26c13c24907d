"""Whatever a client sends has a bound: every number, text, list and object of a request."""

import re
from collections.abc import Iterator
from typing import Any, Final

from service.api.faults.walk import models_in
from service.contract.fields.section import SpecModel
from service.contract.spec.spec import JobSpec
from tests.support.openapi import document

_UNBOUNDED: Final = re.compile(r"(?<!\\)[*+]|\{\d+,\}")
_KEYS: Final = {
    "number": (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    "integer": (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    "string": (("maxLength", "format"),),
    "array": (("maxItems",),),
}


def _unbounded(schema: Any, path: str) -> Iterator[str]:
    """The places of a JSON schema where a value may be as large as the client likes."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _unbounded(item, f"{path}/{index}")
        return
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    for keys in _KEYS.get(kind, ()) if isinstance(kind, str) else ():
        has_short_pattern = "pattern" in schema and not _UNBOUNDED.search(schema["pattern"])
        is_fixed = {"enum", "const"} & schema.keys() or (kind == "string" and has_short_pattern)
        if not schema.keys() & set(keys) and not is_fixed:
            yield f"{path} has no {' or '.join(keys)}"
    is_open = kind == "object" and schema.get("additionalProperties", False) is not False
    if is_open and "maxProperties" not in schema:
        yield f"{path} has no maxProperties"
    for key, inner in schema.items():
        if key not in ("examples", "default", "enum", "const"):
            yield from _unbounded(inner, f"{path}/{key}")


def _sections(model: type[SpecModel]) -> Iterator[type[SpecModel]]:
    yield model
    for field in model.model_fields.values():
        for inner in models_in(field.annotation):
            yield from _sections(inner)


def _used(schema: Any, components: dict[str, Any]) -> dict[str, Any]:
    """`schema` and the components that it names, also by way of others."""
    found: dict[str, Any] = {"": schema}
    pending = [schema]
    while pending:
        part = pending.pop()
        pending += (
            part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        )
        name = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(name, str) and name.rpartition("/")[2] not in found:
            name = name.rpartition("/")[2]
            found[name] = components[name]
            pending.append(components[name])
    return found


class TestSpec:
    def test_every_number_text_list_and_object_has_a_maximum(self) -> None:
        assert list(_unbounded(JobSpec.model_json_schema(), "")) == []

    def test_no_number_is_infinite_or_not_a_number(self) -> None:
        """Pydantic takes `"inf"` and `"nan"` for numbers, and NaN is within every bound."""
        assert {model.model_config["allow_inf_nan"] for model in _sections(JobSpec)} == {False}


class TestRequests:
    def test_every_body_has_a_maximum(self) -> None:
        bodies = [
            operation["requestBody"]["content"]
            for operations in document()["paths"].values()
            for operation in operations.values()
            if "requestBody" in operation
        ]
        used = _used(bodies, document()["components"]["schemas"])
        assert [place for name, schema in used.items() for place in _unbounded(schema, name)] == []

    def test_every_query_parameter_and_header_has_a_maximum(self) -> None:
        found = [
            f"{method} {path} {parameter['in']} {place}"
            for path, operations in document()["paths"].items()
            for method, operation in operations.items()
            for parameter in operation.get("parameters", ())
            if parameter["in"] != "path"
            for place in _unbounded(parameter["schema"], parameter["name"])
        ]
        assert found == []
