"""Types that the sections of a spec share: text, names, ids, and the base of all tasks."""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from service.contract.fields import patterns
from service.contract.fields.section import SpecModel

SecretName = Annotated[str, StringConstraints(pattern=patterns.SECRET_NAME)]


def refusing(sentences: dict[str, str]) -> BeforeValidator:
    """Refuses values that transformers has and this service does not, with the given reasons."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and value in sentences:
            raise ValueError(f"`{value}` is refused: {sentences[value]}")
        return value

    return BeforeValidator(check)


def _no_nul(value: str) -> str:
    if "\x00" in value:
        raise ValueError("must not contain a NUL character")
    return value


_LONGEST_TEXT: Final = 4096
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=_LONGEST_TEXT), AfterValidator(_no_nul)
]
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=patterns.ONE_LINE),
]
# What the Hub accepts as `namespace/name`, or as a name alone.
HubRepoId = Annotated[
    str,
    StringConstraints(
        pattern=patterns.HUB_REPOSITORY,
        max_length=193,
    ),
]
JobId = Annotated[str, StringConstraints(pattern=patterns.JOB_ID)]
Step = Annotated[int, Field(ge=0, le=2**31 - 1)]
FileId = Annotated[str, StringConstraints(pattern=patterns.FILE_ID)]


def _checkpoint(value: Any) -> Any:
    if isinstance(value, str) and value not in ("best", "last") and not value.isdecimal():
        raise ValueError("must be `best`, `last` or the step of a checkpoint")
    return value


CheckpointChoice = Annotated[Literal["best", "last"] | Step, BeforeValidator(_checkpoint)]


MOST_ENTRIES: Final = 1000
"""Of any list or object of a spec, except in the values of `model.config.config_overrides`."""


def _short_enough(value: Any) -> Any:
    if isinstance(value, list | dict) and len(value) > MOST_ENTRIES:
        raise ValueError(f"must be at most {MOST_ENTRIES} long")
    return value


ShortEnough = BeforeValidator(_short_enough)


_MOST_VALUES: Final = 100_000
_DEEPEST: Final = 20


def _moderate(value: Any) -> Any:
    """Bounds values of any form, which types alone cannot do."""
    level, seen = [value], 0
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for item in level:
            parts = [*item, *item.values()] if isinstance(item, dict) else item
            if isinstance(item, str) and len(item) > _LONGEST_TEXT:
                raise ValueError(f"must not hold text of more than {_LONGEST_TEXT} characters")
            inner += parts if isinstance(parts, list) else ()
        seen += len(inner)
        if seen > _MOST_VALUES:
            raise ValueError(f"must not hold more than {_MOST_VALUES:,} values")
        level = inner
    if level:
        raise ValueError(f"must not be nested more than {_DEEPEST} levels deep")
    return value


Moderate = BeforeValidator(_moderate)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Several = Field(min_length=1, max_length=MOST_ENTRIES)
FileIds = Annotated[
    list[FileId],
    _Several,
    BeforeValidator(_as_list, json_schema_input_type=Annotated[list[FileId], _Several] | FileId),
]
Paths = Annotated[
    list[Text],
    _Several,
    BeforeValidator(_as_list, json_schema_input_type=Annotated[list[Text], _Several] | Text),
]


class TaskParametersModel(SpecModel):
    """What the parameters of every task have in common."""

    # `type` has a default only for Python code; a client must give it.
    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema.setdefault("required", []).insert(0, "type")
    )

    type: str

    def variant(self) -> str:
        """Which of the worker's tasks does it: the type, or one of several heads of it."""
        return self.type

    def predicting_variant(self) -> str:
        """The same in a job that only predicts."""
        return self.variant()

    def named_columns(self) -> dict[str, str]:
        """The task's column → the user's, for `<column>_column` parameters that are given."""
        return {}

    def uses_validation_threshold(self) -> bool:
        """Whether a training finds one of these parameters on its validation set."""
        return False

    def keeps_line_ends(self) -> bool:
        """Whether the ends of a plain text file's lines belong to its rows."""
        return False
