"""The columns that a row needs so that a model can answer it. All else about rows is checked where
the model is: see `worker.tasks.row_checks`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_SHOWN: Final = 10
_TEXT: Final[dict[str, tuple[str, ...]]] = {
    "question-answering": ("question", "context"),
    "causal-lm": ("text",),
    "masked-lm": ("text",),
    "text-classification": ("text",),
    "summarization": ("text",),
}
"""Task → columns of text that every row has."""
_ONE_OF: Final[dict[str, tuple[str, ...]]] = {
    "token-classification": ("tokens",),
    "translation": ("source", "translation"),
    "chat": ("messages", "prompt", "instruction"),
    "preference": ("prompt", "input", "chosen", "preferred_output"),
    "reward": ("messages", "completion", "chosen", "preferred_output"),
}
"""Task → columns; a row has one of them."""


class Lack(NamedTuple):
    """What a row lacks."""

    columns: tuple[str, ...]
    """One of them is needed."""
    message: str
    is_given: bool
    """Whether the row has the column, with a value of another type."""


def lacks(task: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[Lack]:
    """`columns`: the task's column → the one in the training data, which rows may also have."""
    for name in _TEXT.get(task, ()):
        value = row.get(name, row.get(columns.get(name, name)))
        if value is None:
            yield Lack((name,), f"required, but not given; {_found(row)}", is_given=False)
        elif not isinstance(value, str):
            yield Lack((name,), f"must be text, not {_kind(value)}", is_given=True)
    choices = _ONE_OF.get(task, ())
    if choices and not any(
        row.get(each) is not None for name in choices for each in (name, columns.get(name, name))
    ):
        needed = " or ".join(f"`{name}`" for name in choices)
        yield Lack(choices, f"a row of {task} needs {needed}; {_found(row)}", is_given=False)


def _found(row: Mapping[str, Any]) -> str:
    shown = ", ".join(f"`{name[:50]}`" for name in list(row)[:_SHOWN]) or "nothing"
    return f"the row has {shown}{', …' if len(row) > _SHOWN else ''}"


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), "an object")
