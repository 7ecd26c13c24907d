"""JSON merge patch, RFC 7396."""

from typing import Any


def merged(target: Any, patch: Any) -> Any:
    """`target` with `patch` applied, both left as they are.

    Objects are merged field by field, null removes a field, anything else takes the place of what
    was there.
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
