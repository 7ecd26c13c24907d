"""Faults of what becomes of the best trial."""

from collections.abc import Iterator
from typing import Any, Final

from service.api.schemas.problems import Fault
from service.api.search_checks import fields
from service.api.search_checks.values import Values
from service.contract.search.spec import PublishBest, RefitBest
from service.contract.spec.spec import JobSpec

_NOT_SET: Final = {
    "name": "the job is named after its search",
    "mode": "the job trains a model",
}


def publish_faults(best: PublishBest, job: JobSpec, values: Values) -> Iterator[Fault]:
    if best.hub is not None:
        hub = best.hub.model_dump(mode="json", exclude_unset=True)
        for fault in values.of_values({"hub": hub}):
            yield fault.model_copy(update={"path": f"best.{fault.path}"})
    elif job.hub is None:
        yield Fault(
            path="best.hub",
            code="missing_field",
            message="`publish` needs to know where to: give `best.hub`, or `job.hub`",
        )


def refit_faults(best: RefitBest, values: Values) -> Iterator[Fault]:
    """Of the values that `set` puts into the template."""
    taken: dict[str, Any] = {}
    for path, value in best.set.items():
        refused = _refused(path, f"best.set.{path}")
        if refused is None:
            taken[path] = value
        else:
            yield refused
    for fault in values.of_values(taken):
        yield _of_set(fault, taken)


def _refused(path: str, where: str) -> Fault | None:
    reason = _NOT_SET.get(path.partition(".")[0])
    if reason is None:
        return fields.older_name(path, where)
    message = f"a refit does not change it: {reason}"
    return Fault(path=where, code="invalid_value", message=message)


def _of_set(fault: Fault, given: dict[str, Any]) -> Fault:
    path = next((path for path in given if fields.is_of(path, fault)), None)
    if path is not None:
        found = fields.unknown(path, fault) or fields.with_whole_name(fault)
        return found.model_copy(update={"path": f"best.set.{found.path}"})
    # A rule's sentence names its fields.
    is_named = fault.code == "conflict"
    message = fault.message if is_named else f"`job.{fault.path}`: {fault.message}"
    return fault.model_copy(update={"path": "best.set", "message": message})
