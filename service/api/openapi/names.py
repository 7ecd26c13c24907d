"""Names for everything that becomes a class in a generated client, so that none is called `…Type0`.

FastAPI and pydantic leave enums and objects inside of a union without a name, and repeat inherited
fields. Here such a member becomes a component, and a component names the one that it extends.
"""

import json
import re
from typing import Any, Final

from pydantic import BaseModel

from service.api.schemas.history import CheckpointDetail
from service.api.schemas.jobs import Job, SubmittedJob
from service.api.schemas.numbers import MODEL
from service.api.schemas.searches import Search, SubmittedSearch

Schema = dict[str, Any]

_EXTENDED: Final[tuple[type[BaseModel], ...]] = (
    *(CheckpointDetail, SubmittedJob, Job),
    *(SubmittedSearch, Search),
)
"""Response models that add fields to another, the most derived first."""
_TWO_NAMES: Final = ("auto_find_batch_size", "on_oom", "precision", "bf16", "fp16")
"""Options of `training` with another name. Generated clients send defaults, and the default of one
name would contradict what is given by the other."""
_UNIONS: Final = ("anyOf", "oneOf")


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def name_models(document: Schema) -> None:
    """Change the document in place."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    for model in _EXTENDED:
        _extend(schemas, model.__name__, model.__bases__[0].__name__)
    for name, schema in list(schemas.items()):
        own = schema["allOf"][-1] if "allOf" in schema else schema
        for field, described in own.get("properties", {}).items():
            # Made from the field's name, which Swagger UI would not show then.
            described.pop("title", None)
            words = re.split(r"[^A-Za-z0-9]+", field)
            of_field = name + "".join(word.capitalize() for word in words)
            schemas.update(_named_members(of_field, described))
    for option in _TWO_NAMES:
        described = schemas["TrainingSpec"]["properties"][option]
        default = json.dumps(described.pop("default"))
        described["description"] = f"{described['description']} Default: `{default}`."
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])


def _named_members(name: str, schema: Schema) -> dict[str, Schema]:
    """The enums and objects in the unions of `schema`, and in lists there, replaced by references
    to them."""
    if MODEL in schema:
        schema |= reference(schema.pop(MODEL))
    found: dict[str, Schema] = {}
    for union in _UNIONS:
        for place, member in enumerate(schema.get(union, ())):
            if isinstance(member.get("const"), str):
                # openapi-python-client would ignore the other members.
                member["enum"] = [member.pop("const")]
            if _is_inline(member):
                assert name not in found, f"two members of {name} need a title"
                found[name] = {"title": name, **member}
                schema[union][place] = reference(name)
            elif _is_inline(member.get("items", {})):
                found[f"{name}Item"] = {"title": f"{name}Item", **member["items"]}
                member["items"] = reference(f"{name}Item")
            else:
                found |= _named_members(name, member)
    return found


def _is_inline(schema: Schema) -> bool:
    return "enum" in schema or schema.get("type") == "object"


def _extend(schemas: dict[str, Schema], name: str, base: str) -> None:
    """`name` as its base and what it adds."""
    inherited, own = schemas[base], schemas[name]
    added = {
        field: described
        for field, described in own["properties"].items()
        if inherited["properties"].get(field) != described
    }
    required = [field for field in own.get("required", ()) if field in added]
    schemas[name] = {
        "allOf": [
            reference(base),
            {"type": "object", "properties": added, "required": required},
        ],
        **{key: own[key] for key in ("title", "description") if key in own},
    }


def _without_null(schema: Schema) -> Schema:
    """A parameter is left out; a query or a path cannot say null."""
    members = [member for member in schema.get("anyOf", ()) if member != {"type": "null"}]
    if len(members) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key not in {"anyOf", "title"}}
    return {**members[0], **rest}
