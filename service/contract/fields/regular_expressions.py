"""Checks the regular expressions of a spec without compiling or matching them.

Compiling 7 kB took 7 s, and matching can take for ever; reading takes 2 µs for each character. They
are compiled where they are used: in a stage, which has limits of its own.
"""

import re
from importlib import import_module
from typing import Any, Final

_PLAIN_NAME: Final = re.compile(r"[\w.]*")
_MOST_LETTERS: Final = 100_000
"""Characters of the names and expressions of one object together."""
# The first half of `re.compile`; `sre_parse`, its public name, is deprecated.
_parse: Final = import_module("re._parser").parse


def checked(value: str) -> str:
    """`value`, if it can be read as a regular expression. Raises ValueError."""
    if _PLAIN_NAME.fullmatch(value):
        return value
    try:
        _parse(value)
    except re.error as error:
        raise ValueError(f"is not a valid regular expression: {error}") from error
    except (RecursionError, OverflowError):
        raise ValueError(
            "is not a valid regular expression: it is nested too deeply, or a count is too large"
        ) from None
    return value


def few_letters(value: Any) -> Any:
    """`value`, if the keys of this object are short enough all together. Raises ValueError."""
    if isinstance(value, dict) and sum(len(str(key)) for key in value) > _MOST_LETTERS:
        raise ValueError(f"its names must have at most {_MOST_LETTERS:,} characters together")
    return value
