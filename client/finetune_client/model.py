"""The base of every model in `types`."""

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from finetune_client import tables


class Model(BaseModel):
    """Keeps unknown fields: an older client can read the answers of a newer service.

    A value of another type than the declared one is left as it came. Only a tag, such as
    `type: "chat"`, must match, because it decides which model a value is.
    """

    # Built when first used: a program that needs five of these models does not wait for a hundred.
    model_config = ConfigDict(extra="allow", defer_build=True, protected_namespaces=())

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_it_came(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        try:
            return handler(value)
        except ValidationError:
            annotation = cls.model_fields[str(info.field_name)].annotation
            if get_origin(annotation) is Literal and len(get_args(annotation)) == 1:  # a tag
                raise
            return value

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, tables.shown(value)

    def _repr_html_(self) -> str:
        """A table of its fields, for notebooks."""
        return tables.of_fields(type(self).__name__, self.model_dump(mode="json", warnings=False))
