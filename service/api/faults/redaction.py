"""Shortens what errors repeat of a client's input, and hides secrets."""

import re
from typing import Any, Final

from service.system import escaping
from service.system.masking import holds_secret

_LONGEST: Final = 100
_SEARCHED: Final = 4096
"""Characters that are searched for secrets: far more than are shown."""
_SECRET_NAME: Final = re.compile(r"token|secret|passw|api_?key|credential|authorization", re.I)


def shown(path: str, value: Any) -> Any:
    """`value` as an error may show it: scalars shortened, containers by kind and size."""
    if value is None or isinstance(value, bool):
        return value
    if _SECRET_NAME.search(path, 0, _SEARCHED):
        return "[hidden]"
    if isinstance(value, dict):
        return f"object with {len(value)} fields"
    if isinstance(value, list | tuple):
        return f"array of {len(value)}"
    if isinstance(value, int | float):
        return value
    return cut(str(value))


def cut(text: str) -> str:
    """Text shortened and in one line; hidden if it looks like a secret."""
    if holds_secret(text[:_SEARCHED]):
        return "[hidden]"
    clean = escaping.line(text[:_LONGEST])
    return clean if len(text) <= _LONGEST else f"{clean}… ({len(text)} characters)"
