"""Values as they stand on a command line."""

from typing import Any


def typed(value: Any) -> Any:
    """A word of the command line as a bool, a number, or itself."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
