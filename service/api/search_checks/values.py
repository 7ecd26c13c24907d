"""Puts values of the space into the template and asks whether the job spec takes them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from service.api.faults.collect import Findings
from service.api.redaction import shown
from service.api.schemas.problems import Fault
from service.contract.search.space import Dimension, in_order, wanted, with_values

Examine = Callable[[Any], Findings]
"""Every fault of a job's spec."""
_FIXED: Final = {
    "name": "the name of a trial is its search's, with its number",
    "mode": "every trial trains a model",
    "hub": "only the best trial is pushed: see `best`",
    "webhooks": "receivers are the same for all trials",
    "secrets": "secrets are the same for all trials",
    "metadata": "labels are the same for all trials",
    "tracking": "the runs of all trials belong to the search's run in MLflow",
    "priority": "it decides when a trial runs, not how it trains",
    "timeout_seconds": "it decides how long a trial may run, not how it trains",
    "stage_timeout_seconds": "it decides how long a trial may run, not how it trains",
    "max_retries": "it decides what follows a failure, not how a trial trains",
}
"""Sections that do not vary, and why."""


class Values:
    """The template, and what the job spec says about single values of the space in it."""

    def __init__(
        self, template: dict[str, Any], space: Mapping[str, Dimension], examine: Examine
    ) -> None:
        self._template = template
        self._space = space
        self._examine = examine
        self._own = {(fault.path, fault.message) for fault in examine(template).faults}

    def faults(self) -> Iterator[Fault]:
        """Of each field its own ones, of the first value that has any."""
        for path in in_order(self._space):
            section = path.partition(".")[0]
            if section in _FIXED:
                message = f"does not vary in a search: {_FIXED[section]}"
                yield Fault(path=f"space.{path}", code="invalid_value", message=message)
            else:
                yield from self._of_field(path, self._space[path])

    def _of_field(self, path: str, dimension: Dimension) -> Iterator[Fault]:
        for name, value in _tried(dimension):
            for fault in self.of_values(self._parents(path) | {path: value}):
                found = self._at(path, name, value, fault)
                if found is not None:
                    yield found
                    if found.code in ("unknown_field", "moved_option", "unsupported_option"):
                        return

    def of_values(self, values: Mapping[str, Any]) -> list[Fault]:
        """What the job spec says about these values, and not about the template itself."""
        found = self._examine(with_values(self._template, values)).faults
        return [fault for fault in found if (fault.path, fault.message) not in self._own]

    def _parents(self, path: str, depth: int = 0) -> dict[str, Any]:
        """Values of other fields with which this one varies."""
        values: dict[str, Any] = {}
        for other, condition in (self._space[path].when or {}).items():
            if other in self._space and depth < len(self._space):
                values |= self._parents(other, depth + 1)
                values[other] = wanted(condition)[0]
        return values

    def _at(self, path: str, name: str, value: Any, fault: Fault) -> Fault | None:
        """The fault in terms of the space; None where another value of the space may mend it."""
        where = f"space.{path}.{name}"
        is_own = fault.path == path or path.startswith(f"{fault.path}.")
        if fault.code in ("unknown_field", "moved_option", "unsupported_option") and is_own:
            return _unknown(path, fault)
        if is_own or fault.path.startswith(f"{path}."):
            return fault.model_copy(update={"path": where, "given": shown(where, value)})
        others = [other for other in self._space if other != path]
        if any(f"`{other}`" in fault.message or fault.path == other for other in others):
            return None
        # A rule's sentence names its fields.
        is_rule = fault.code == "conflict"
        message = fault.message if is_rule else f"`job.{fault.path}`: {fault.message}"
        return Fault(path=where, code="conflict", message=message, given=shown(where, value))

    def takes_fractions(self, path: str, dimension: Dimension) -> bool:
        """Whether a range of whole numbers is one of a field that takes others, too."""
        low = dimension.low or 0
        found = self.of_values(self._parents(path) | {path: low + 0.5})
        return not any(fault.path == path and fault.code == "invalid_type" for fault in found)


def _tried(dimension: Dimension) -> Iterator[tuple[str, Any]]:
    if dimension.choices is not None:
        yield from ((f"choices.{index}", value) for index, value in enumerate(dimension.choices))
        return
    yield "low", dimension.low
    if dimension.high != dimension.low:
        yield "high", dimension.high
    if dimension.step is not None and dimension.low is not None:
        yield "step", dimension.low + dimension.step


def _unknown(path: str, fault: Fault) -> Fault:
    section = path.rpartition(".")[0]
    near = fault.suggestion
    if near is not None and "." not in near and section:
        near = f"{section}.{near}"
    hint = f"; did you mean `{near}`?" if near and "did you mean" in fault.message else ""
    message = f"the job spec has no such field{hint}" if hint or not near else fault.message
    if fault.code != "unknown_field":
        message = fault.message
    return Fault(path=f"space.{path}", code=fault.code, message=message, suggestion=near)
