"""Compares an answer with the client's own type of it: no field more, none missing, no other type.

Runs in the client's process, whose `openai` may be another than that of the tests.
"""

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, Union

from pydantic import BaseModel


class Mlflow(BaseModel):
    project: str
    name: str | None


class MlflowIntegration(BaseModel):
    type: Literal["mlflow"]
    mlflow: Mlflow


EXTENSIONS: Final[Mapping[str, frozenset[str]]] = {
    "FileObject": frozenset({"project", "sha256"}),
}
"""By the client's type: fields of ours that OpenAI's objects lack."""
NEWER: Final[Mapping[str, frozenset[str]]] = {
    "ChatCompletion": frozenset({"metadata", "moderation"}),
    "ChatCompletionChunk": frozenset({"moderation", "obfuscation"}),
    "ChoiceDelta": frozenset({"audio"}),
    "Model": frozenset({"shutdown_date"}),
}
"""By the client's type: fields that only later releases of the client have."""
VALUES: Final[Mapping[str, frozenset[str | None]]] = {
    "FineTuningJob.status": frozenset({"paused"}),
    "CompletionChoice.finish_reason": frozenset({None}),  # in a stream, before the end
}
"""What OpenAI's API answers according to its documentation, and the client's types leave out."""
OURS: Final[Mapping[tuple[str, str], type[BaseModel]]] = {
    ("FineTuningJobWandbIntegrationObject", "mlflow"): MlflowIntegration,
}
"""By the client's type and the `type` of an object: variants that OpenAI's API lacks."""
PAGE: Final = frozenset({"object", "has_more", "first_id", "last_id"})
"""OpenAI's pages have these; the client's types of pages read some of them."""


def require_exact(data: Any, kind: Any) -> None:
    """AssertionError that names each misfit of `data`, decoded JSON, with the client's `kind`."""
    found = list(misfits(data, kind, getattr(kind, "__name__", "answer")))
    assert not found, "\n".join(found)


def misfits(data: Any, kind: Any, place: str) -> Iterator[str]:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        yield from misfits(data, typing.get_args(kind)[0], place)
    elif origin is Literal:
        if not any(data == value and type(data) is type(value) for value in typing.get_args(kind)):
            yield f"{place}: {data!r} is none of {typing.get_args(kind)}"
    elif origin in (Union, types.UnionType):
        yield from _of_union(data, typing.get_args(kind), place)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from _of_model(data, kind, place)
    elif origin in (list, tuple):
        yield from _of_list(data, typing.get_args(kind)[0], place)
    elif origin is dict:
        yield from _of_dict(data, typing.get_args(kind)[1], place)
    elif isinstance(kind, type) and kind is not object and not _is_plain(data, kind):
        yield f"{place}: {type(data).__name__} instead of {kind.__name__}"


def _is_plain(data: Any, kind: type) -> bool:
    """Integers are numbers, but truth values are not integers."""
    return type(data) is kind or (kind is float and type(data) is int)


def _of_union(data: Any, kinds: tuple[Any, ...], place: str) -> Iterator[str]:
    """The misfits with the member that fits best."""
    if data is None and type(None) in kinds:
        return
    tried = [list(misfits(data, each, place)) for each in kinds if each is not type(None)]
    yield from min(tried, key=len)


def _of_list(data: Any, kind: Any, place: str) -> Iterator[str]:
    if not isinstance(data, list):
        yield f"{place}: {type(data).__name__} instead of a list"
        return
    for number, item in enumerate(data):
        yield from misfits(item, kind, f"{place}[{number}]")


def _of_dict(data: Any, kind: Any, place: str) -> Iterator[str]:
    if not isinstance(data, dict):
        yield f"{place}: {type(data).__name__} instead of an object"
        return
    for name, item in data.items():
        yield from misfits(item, kind, f"{place}.{name}")


def _of_model(data: Any, model: type[BaseModel], place: str) -> Iterator[str]:
    if not isinstance(data, dict):
        yield f"{place}: {type(data).__name__} instead of {model.__name__}"
        return
    model = OURS.get((model.__name__, str(data.get("type"))), model)
    name = model.__name__.partition("[")[0]
    fields = {field.alias or own: field for own, field in model.model_fields.items()}
    known = EXTENSIONS.get(name, frozenset()) | NEWER.get(name, frozenset())
    known |= PAGE if name.endswith("Page") else frozenset()
    for extra in sorted(data.keys() - fields.keys() - known):
        yield f"{place}: {name} has no field {extra!r}"
    for key, field in fields.items():
        if key in data and data[key] in VALUES.get(f"{name}.{key}", ()):
            continue
        if key in data:
            yield from misfits(data[key], field.annotation, f"{place}.{key}")
        elif field.is_required():
            yield f"{place}: lacks {key!r}"
