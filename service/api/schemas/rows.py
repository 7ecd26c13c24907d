"""Response models made from rows of the database."""

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel

ModelT = TypeVar("ModelT", bound=BaseModel)


def model_from_row(kind: type[ModelT], row: Any, **others: Any) -> ModelT:
    """A `kind` with the row's values of the same names; `others`: every other field, even one with
    a default. Only `object`, a constant, may be left out."""
    names = kind.model_fields.keys() - others.keys() - {"object"}
    return kind(**{name: getattr(row, name) for name in names}, **others)


class Page(BaseModel):
    """A part of a list; the next part begins after the last id of this one."""

    @classmethod
    def from_items(cls, data: Sequence[Any], *, has_more: bool) -> Self:
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls.model_validate(
            {"data": data, "first_id": first, "last_id": last, "has_more": has_more}
        )
