"""The `message` of a problem: the only part that a simple client prints of an error."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from service.system import escaping

_MOST_FAULTS: Final = 5
_LONGEST_FAULT: Final = 300
_LONGEST: Final = 2000


def message_of(title: str, detail: str, faults: Sequence[Mapping[str, Any]] = ()) -> str:
    """One line that says what is wrong and what to do, from the title and the detail or faults."""
    text = _of_faults(title, faults) if faults else _of_detail(title, detail)
    return _cut(escaping.line(" ".join(text.split())), _LONGEST)


def _of_detail(title: str, detail: str) -> str:
    if not detail or detail.startswith(title):
        return detail or title
    separator = ". " if detail[0].isupper() else ": "
    return f"{title}{separator}{detail}"


def _of_faults(title: str, faults: Sequence[Mapping[str, Any]]) -> str:
    """`Invalid spec: 2 errors: training.learning_rte: unknown field; did you mean …; …`"""
    count = f"{len(faults)} error{'s' if len(faults) > 1 else ''}"
    head = title if count in title else f"{title}: {count}"
    lines = [_cut(_of_fault(fault), _LONGEST_FAULT) for fault in faults[:_MOST_FAULTS]]
    more = len(faults) - len(lines)
    if more:
        lines.append(f"and {more} more")
    return f"{head}: {'; '.join(lines)}"


def _of_fault(fault: Mapping[str, Any]) -> str:
    path = fault.get("path")
    return f"{path}: {fault['message']}" if path else str(fault["message"])


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
