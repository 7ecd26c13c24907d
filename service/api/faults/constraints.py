"""What a value must be, in words: of a field of the spec, or of a parameter of a request."""

from collections.abc import Mapping
from typing import Any, Final

from service.contract.fields import patterns

_KINDS: Final[dict[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
_OF_KIND: Final = frozenset(
    {"type", "parsing", "parsing_size", "from_float", "attributes_type", "unicode"}
)
_BOUNDS: Final[dict[str, str]] = {
    "ge": "at least {}",
    "gt": "above {}",
    "le": "at most {}",
    "lt": "below {}",
    "min_length": "at least {} long",
    "max_length": "at most {} long",
}


def kind(error_type: str) -> str | None:
    """The kind of value that is needed, if the error of pydantic is about the kind."""
    name, _, what = error_type.partition("_")
    return _KINDS.get(name, "another type") if what in _OF_KIND else None


def bounds(context: Mapping[str, Any]) -> str | None:
    """What pydantic's context of an error demands, after "must be"; None if it says nothing."""
    parts = [text.format(context[key]) for key, text in _BOUNDS.items() if key in context]
    if "pattern" in context:
        parts.append(patterns.WORDS[context["pattern"]])
    return " and ".join(parts) or None


def of_parameter(error: Mapping[str, Any]) -> str:
    """What is wrong with a path, query or header parameter."""
    context = error.get("ctx", {})
    if error["type"] in ("enum", "literal_error"):
        return f"must be {context['expected'].replace(chr(39), '`')}"
    if error["type"].startswith("datetime"):
        return "must be a time, such as 2026-01-31T12:00:00Z"
    wanted = kind(error["type"]) or bounds(context)
    return f"must be {wanted}" if wanted else str(error["msg"])
