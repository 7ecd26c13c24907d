"""What the caller gave, as the JSON of a request, and answers as models."""

import uuid
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from pathlib import PurePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from finetune_client.errors import InvalidArgumentError, UnexpectedAnswerError
from finetune_client.model import Model

M = TypeVar("M", bound=Model)


def spec(given: Any, sections: Mapping[str, Any]) -> dict[str, Any]:
    """A spec or a part of one; `sections` replace what it has under their names."""
    return {**_plain(given or {}), **{name: _value(value) for name, value in sections.items()}}


def _plain(given: Any) -> dict[str, Any]:
    if not isinstance(given, (BaseModel, Mapping)):
        raise InvalidArgumentError(f"a spec is a mapping or a model, not {type(given).__name__}")
    return (
        {name: _value(value) for name, value in dict(given).items()}
        if isinstance(given, Mapping)
        else given.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    )


def _value(value: Any) -> Any:
    """As JSON: models and paths too, also within lists."""
    if isinstance(value, (BaseModel, Mapping)):
        return _plain(value)
    if isinstance(value, (list, tuple)):
        return [_value(each) for each in value]
    if isinstance(value, PurePath):
        return str(value)
    return value.isoformat() if isinstance(value, (date, time)) else value


def rows(given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [_plain(row) for row in given]


def key(given: str | None) -> str:
    """An idempotency key; InvalidArgumentError for one that no header can hold."""
    found = given or str(uuid.uuid4())
    if not (found.isascii() and found.isprintable()):
        raise InvalidArgumentError("an idempotency key has printable ASCII characters only")
    return found


def moment(given: datetime | None) -> str | None:
    """With its zone; a time without one is that of this machine's clock."""
    return given.astimezone().isoformat() if given else None


def query(**given: Any) -> dict[str, Any]:
    """The parameters that have a value; a mapping becomes `key:value` texts."""
    found = {name: value for name, value in given.items() if value not in (None, [], {})}
    return {
        name: [f"{key}:{each}" for key, each in value.items()]
        if isinstance(value, Mapping)
        else value
        for name, value in found.items()
    }


def read(model: type[M], content: Any) -> M:
    """The model of an answer; UnexpectedAnswerError if it lacks what the model needs."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        missing = ", ".join(".".join(map(str, fault["loc"])) for fault in error.errors())
        raise UnexpectedAnswerError(
            f"the service answered with a {model.__name__} that lacks or changes: {missing}"
        ) from error
