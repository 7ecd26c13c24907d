"""`--set FIELD=VALUE`: changes to a spec, given on the command line."""

import json as jsonlib
from typing import Annotated, Any

import typer

from service.cli.client import Json
from service.cli.exit_codes import UsageError

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field by its path and its new value, in JSON or as text: "
        "training.learning_rate=1e-4. null: the default. May be given several times.",
    ),
]


def merge_patch(changes: list[str]) -> Json:
    """`["a.b=1", "a.c=x"]` → `{"a": {"b": 1, "c": "x"}}`. Raises UsageError."""
    patch: Json = {}
    for change in changes:
        path, equals, text = change.partition("=")
        *parents, name = path.split(".")
        if not equals or not all([*parents, name]):
            raise UsageError(f"--set {change!r} is not FIELD=VALUE")
        holder: Any = patch
        for parent in parents:
            holder = holder.setdefault(parent, {})
            if not isinstance(holder, dict):
                raise UsageError(f"--set {change!r} goes into a field that was set before")
        holder[name] = _value(text)
    return patch


def _value(text: str) -> Any:
    try:
        return jsonlib.loads(text)
    except ValueError:
        return text


def changed(spec: Json, patch: Json) -> Json:
    """The spec with the patch merged in; null takes a field out."""
    result = dict(spec)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            inner = result.get(name)
            result[name] = changed(inner if isinstance(inner, dict) else {}, value)
        else:
            result[name] = value
    return result
