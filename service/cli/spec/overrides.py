"""`--set FIELD=VALUE`: changes to a spec, given on the command line."""

import json as jsonlib
import re
from typing import Annotated, Any, Final

import typer

from service.cli.terminal.client import Json
from service.cli.terminal.exit_codes import UsageError
from service.contract.spec import spec_yaml

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field by its path and its new value: training.learning_rate=1e-4. The value is "
        "JSON, a list or mapping as in YAML ([a, b]), or text. null: the default. A name that "
        'holds a dot in quotes: metadata."a.b"=x. May be given several times.',
    ),
]
_PATH: Final = re.compile(r'(?:"[^"]+"|[^."=]+)(?:\.(?:"[^"]+"|[^."=]+))*(?==)')
_NAME: Final = re.compile(r'"([^"]+)"|([^."]+)')
_SHORT_FORMS: Final = {
    ("task",): "type",
    ("resources", "strategy"): "type",
    # Of a search:
    ("job", "task"): "type",
    ("job", "resources", "strategy"): "type",
    ("sampler",): "name",
    ("pruner",): "name",
    ("best",): "action",
}
"""Sections that a spec may give as this field alone."""


def merge_patch(changes: list[str]) -> Json:
    """`["a.b=1", "a.c=x"]` → `{"a": {"b": 1, "c": "x"}}`. Raises UsageError."""
    patch: Json = {}
    for change in changes:
        path = _PATH.match(change)
        if path is None:
            raise UsageError(f"--set {change!r} is not FIELD=VALUE")
        names = [quoted or plain.strip() for quoted, plain in _NAME.findall(path.group())]
        if not all(names):
            raise UsageError(f"--set {change!r} is not FIELD=VALUE")
        *parents, name = names
        holder: Any = patch
        for parent in parents:
            holder = holder.setdefault(parent, {})
            if not isinstance(holder, dict):
                raise UsageError(f"--set {change!r} goes into a field that was set before")
        holder[name] = _value(change[path.end() + 1 :], change)
    return patch


def _value(text: str, change: str) -> Any:
    try:
        return jsonlib.loads(text)
    except ValueError:
        pass
    if re.fullmatch(r"\s*(\[.*\]|\{.*\})\s*", text, re.DOTALL):  # quotes are lost in a shell
        try:
            return spec_yaml.parse(text)
        except spec_yaml.SpecYamlError as error:
            raise UsageError(f"--set {change!r}: the value cannot be read: {error}") from error
    number = re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text)  # .5, +1: not JSON
    return spec_yaml.parse(text) if number else text


def changed(spec: Json, patch: Json, place: tuple[str, ...] = ()) -> Json:
    """The spec with the patch merged in; null takes a field out."""
    result = dict(spec)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = changed(
                _section(result.get(name), (*place, name)), value, (*place, name)
            )
        else:
            result[name] = value
    return result


def _section(given: Any, place: tuple[str, ...]) -> Json:
    if isinstance(given, str) and place in _SHORT_FORMS:
        return {_SHORT_FORMS[place]: given}
    return given if isinstance(given, dict) else {}
