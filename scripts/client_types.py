"""`make client-types`: client/finetune_client/types.py, from the OpenAPI document.

`python -m scripts.client_types` prints the module. Only the models that the client's own methods
take and return are in it; without bounds and patterns, because the service checks values and an
older client must accept what a newer service answers.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from service.api.app import create_app
from service.settings import Settings

Json = dict[str, Any]
GENERATOR: Final = Path(sys.prefix) / "datamodel-code-generator"
"""`make` installs it there, because the service needs none of what it brings."""
_COVERED: Final = (
    *("/v1/jobs", "/v1/files", "/v1/predictions", "/v1/previews", "/v1/webhooks"),
    "/v1/searches",
)
_REF: Final = "#/components/schemas/"
_BOUNDS: Final = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("propertyNames", "uniqueItems", "examples", "title", "discriminator"),
}
_OPTIONS: Final = (
    *("--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"),
    *("--target-python-version", "3.11", "--base-class", "finetune_client.model.Model"),
    *(
        "--enum-field-as-literal",
        "all",
        "--use-type-alias",
        "--strict-nullable",
        "--disable-timestamp",
    ),
    *("--use-schema-description", "--use-field-description", "--use-single-line-docstring"),
    "--wrap-string-literal",
    *("--use-standard-collections", "--use-union-operator", "--use-annotated"),
    *("--formatters", "ruff-format"),
)
_HEADER: Final = (
    '"""What the service takes and answers. Made by `make client-types` from its OpenAPI document: '
    'do not edit."""'
)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        document = create_app(Settings(home=Path(home))).openapi()
    sys.stdout.write(module_of(covered(document)))


def covered(document: Json) -> Json:
    """The document with the models of the client's operations alone, without bounds."""
    operations = [
        operation
        for path, methods in document["paths"].items()
        if path.startswith(_COVERED)
        for operation in methods.values()
    ]
    models: Json = document["components"]["schemas"]
    mappings = {_REF + name: model for name, model in models.items() if _is_mapping(model)}
    operations, models = _inlined(operations, mappings), _inlined(models, mappings)
    found: set[str] = set()
    waiting = list(_named(operations))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _named(models[name])
    return {
        "openapi": document["openapi"],
        "info": document["info"],
        "paths": {},
        "components": {"schemas": {name: _model(models[name]) for name in sorted(found)}},
    }


def _is_mapping(model: Json) -> bool:
    return model.get("type") == "object" and not model.get("properties")


def _inlined(value: Any, mappings: Mapping[str, Json]) -> Any:
    """With the mappings themselves instead of references to them: they become dicts, where a model
    would have no fields."""
    if isinstance(value, dict):
        found = mappings.get(value.get("$ref", ""))
        if found is not None:
            value = {"additionalProperties": True, **found}
        return {name: _inlined(each, mappings) for name, each in value.items()}
    return [_inlined(each, mappings) for each in value] if isinstance(value, list) else value


def _named(value: Any) -> Iterator[str]:
    """The models that a part of the document refers to."""
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith(_REF):
            yield reference.removeprefix(_REF)
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _named(each)


def _model(schema: Json) -> Json:
    # The names of properties are not keywords: one is called `title`, for example.
    properties = {name: _unbounded(value) for name, value in schema.get("properties", {}).items()}
    others = {name: value for name, value in schema.items() if name != "properties"}
    if properties:  # further fields are kept in any case
        others.pop("additionalProperties", None)
    return {**_unbounded(others), **({"properties": properties} if properties else {})}


def _unbounded(value: Any) -> Any:
    """Without bounds, and open to fields that a newer service adds."""
    if isinstance(value, dict):
        return {
            name: _unbounded(each)
            for name, each in value.items()
            if name not in _BOUNDS and (name, each) != ("additionalProperties", False)
        }
    return [_unbounded(each) for each in value] if isinstance(value, list) else value


def module_of(document: Json) -> str:
    """The Python module that the generator makes of a document."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "openapi.json", Path(folder) / "types.py"
        source.write_text(json.dumps(document))
        subprocess.run(
            [
                *(sys.executable, "-m", "datamodel_code_generator", "--input", str(source)),
                *("--output", str(target), *_OPTIONS, "--custom-file-header", _HEADER),
            ],
            # It formats what it wrote with the ruff in PATH.
            env={
                **os.environ,
                "PYTHONPATH": str(GENERATOR),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            check=True,
        )
        return target.read_text()


if __name__ == "__main__":
    main()
