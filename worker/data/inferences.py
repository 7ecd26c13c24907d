"""What the data decides because the spec leaves it open; each is reported once, with its reason."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from service.contract.stage.events import Notice

_FILE: Final = "inferences.json"
_MOST: Final = 100
"""Entries of a list that are kept; each has up to `_LONGEST` characters."""
_LONGEST: Final = 200
_SHOWN: Final = 20
"""Entries of a list in a message."""
_CHARACTERS: Final = 80
"""Of each value in a message."""


@dataclass
class Inferences:
    """Of one job. They are stored with its prepared data, for later jobs that use them again."""

    _found: dict[str, dict[str, Any]] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)

    def add(self, field: str, value: Any, reason: str) -> None:
        """`field` is that of the spec, such as `task.problem_type`; `value` what it would have to
        be set to for the same result. `reason` is a clause without a full stop at its end.

        What was added first for a field remains. Of a long list the beginning is kept, and
        `left_out` counts the rest.
        """
        found = {"value": _bounded(value), "reason": reason}
        if isinstance(value, list) and len(value) > _MOST:
            found["left_out"] = len(value) - _MOST
        self._found.setdefault(field, found)

    def unreported(self) -> Iterator[Notice]:
        """A notice of each that was added since the last call."""
        for name, found in self._found.items():
            if name not in self._reported:
                self._reported.add(name)
                message = f"Inferred `{name}: {_shown(found)}`: {found['reason']}"
                yield Notice(message=message, data={"inferred": {name: found}})

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Field → {value, reason}."""
        return dict(self._found)

    # ---- with the prepared data -----------------------------------------------------------------

    def write(self, folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(self._found))

    def read(self, folder: Path) -> None:
        """Add what `write` wrote there."""
        for name, found in json.loads((folder / _FILE).read_text()).items():
            self._found.setdefault(name, found)


def _bounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_bounded(each) for each in value[:_MOST]]
    return value[:_LONGEST] if isinstance(value, str) else value


def _shown(found: dict[str, Any]) -> str:
    value, left_out = found["value"], found.get("left_out", 0)
    if not isinstance(value, list):
        return str(value)[:_CHARACTERS]
    hidden = max(len(value) - _SHOWN, 0) + left_out
    more = [f"… {hidden:,} more"] if hidden else []
    return f"[{', '.join([*(str(each)[:_CHARACTERS] for each in value[:_SHOWN]), *more])}]"
