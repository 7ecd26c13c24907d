"""Shortens what errors repeat of a client's input, and hides secrets."""

import re
from typing import Any, Final

_LONGEST: Final = 100
_SEARCHED: Final = 4096
"""Characters that are searched for secrets: far more than are shown."""
_SECRET_NAME: Final = re.compile(r"token|secret|passw|api_?key|credential|authorization", re.I)
_SECRET_VALUE: Final = re.compile(
    r"\b(hf_|sk-|ft-|ghp_|glpat-|AKIA|eyJ)[A-Za-z0-9_-]{8,}|\bBearer\s|://[^/\s]*@", re.I
)


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
    """Text shortened; hidden if it looks like a secret; without what UTF-8 cannot encode."""
    if _SECRET_VALUE.search(text, 0, _SEARCHED):
        return "[hidden]"
    clean = text[:_LONGEST].encode("utf-8", "replace").decode()
    return clean if len(text) <= _LONGEST else f"{clean}… ({len(text)} characters)"
