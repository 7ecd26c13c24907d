"""For each field of the spec a body with the worst values of each kind in its place."""

import json
from collections.abc import Iterator
from inspect import get_annotations
from typing import Any, Final

from service.api.faults.walk import kinds, models_in
from service.contract.fields.section import SpecModel
from service.contract.spec.spec import JobSpec
from tests.api.factories import SPEC

_MARK: Final = "@value@"
_WIDE: Final = "[a-\uffff]"
_TAGS: Final = ("type", "method", "source")
_NEEDED: Final[dict[str, dict[str, Any]]] = {
    "hub": {"name": "org/data"},
    "upload": {"train": ["file-1"]},
    "path": {"train": ["/a"]},
}

# JSON texts; no serializer writes some of them.
WORST: Final[dict[str, str]] = {
    "infinite text": '"inf"',
    "not a number": '"nan"',
    "huge": "1e308",
    "more than huge": "1e400",
    "infinite": "-Infinity",
    "long integer": "9" * 5000,
    "long integer text": json.dumps("9" * 4000),
    "18 digits": "-" + "9" * 18,
    "tiny": "1e-320",
    "half a character": '"\\ud800"',
    "half a character in a list": '["\\ud800"]',
    "half a character as a name": '{"\\ud800": 1}',
    "NUL": '"\\u0000"',
    "infinite in text": json.dumps('{"num_cycles": 1e999}'),
    "half a character in text": json.dumps('{"num_cycles": "\\ud800"}'),
    "half a name in text": json.dumps('{"\\ud800": 1}'),
    "deep text": json.dumps('{"a":' * 5000),
    "deep": '{"a":[' * 300 + "]}" * 300,
    "long": json.dumps("x" * 200_000),
    "many": json.dumps(["x"] * 20_000),
    "many names": json.dumps({f"k{number}": 1 for number in range(20_000)}),
    "wide expression": json.dumps(_WIDE * 580),
    "wide names": json.dumps({f"{_WIDE * 400}{number}": 1 for number in range(90)}),
    "deep expression": json.dumps("(" * 4000),
    "counted expression": json.dumps("(a{1,1000}){1,1000}" * 200),
    "empty": "{}",
}


def places(*, of_each_kind: bool = False) -> list[tuple[str, str]]:
    """Each field's path, and a body as JSON with a mark where its value belongs.

    A field that kinds of a section inherit, such as tasks, is there once, or once for each kind.
    """
    found: dict[tuple[object, ...], tuple[str, str]] = {}
    for number, (path, declared_by, body) in enumerate(_walk(JobSpec, (), SPEC)):
        field = (number,) if of_each_kind else (path, declared_by)
        found.setdefault(field, (".".join(path), body))
    return [*found.values()]


def bodies(template: str) -> Iterator[tuple[str, bytes]]:
    for name, value in WORST.items():
        yield name, template.replace(json.dumps(_MARK), value).encode()


def _walk(
    model: type[SpecModel], path: tuple[str, ...], body: dict[str, Any]
) -> Iterator[tuple[tuple[str, ...], type, str]]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        declared_by = next(base for base in model.__mro__ if name in get_annotations(base))
        yield here, declared_by, json.dumps(_with(body, here, _MARK))
        for inner in models_in(field.annotation):
            yield from _walk(inner, here, _with(body, here, _least(inner)))


def _least(model: type[SpecModel]) -> dict[str, Any]:
    tags = {tag: kinds(model, tag)[0] for tag in _TAGS if kinds(model, tag)}
    return tags | _NEEDED.get(tags.get("source", ""), {})


def _with(body: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**body, name: value}
    section = body.get(name)
    return {**body, name: _with(section if isinstance(section, dict) else {}, tuple(rest), value)}
