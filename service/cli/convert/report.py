"""What a conversion has made, and what it has left out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.api.faults.redaction import shown


@dataclass(frozen=True)
class LeftOut:
    option: str
    given: Any
    """Cut short; secrets are hidden."""
    reason: str


@dataclass
class Conversion:
    """The arguments that wait for their place, and the spec that grows from them."""

    flags: dict[str, Any]
    spec: dict[str, Any] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns_from: Path | None = None
    """The first local file of the data: scripts choose columns by their order in it."""

    def take(self, name: str, default: Any = None) -> Any:
        return self.flags.pop(name, default)

    def section(self, name: str) -> dict[str, Any]:
        section: dict[str, Any] = self.spec.setdefault(name, {})
        return section

    def leave_out(self, option: str, given: Any, reason: str) -> None:
        self.left_out.append(LeftOut(option, shown(option, given), reason))

    def note(self, text: str) -> None:
        self.notes.append(text)
