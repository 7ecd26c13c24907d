"""Faults of what becomes of the best trial."""

from collections.abc import Iterator
from typing import Final

from service.api.schemas.problems import Fault
from service.api.search_checks import fields
from service.api.search_checks.values import Values, whole_name
from service.contract.search.spec import PublishBest, RefitBest
from service.contract.spec import JobSpec

_NOT_SET: Final = {
    "name": "the job is named after its search",
    "mode": "the job trains a model",
}
_NAMES: Final = ("unknown_field", "moved_option")


def publish_faults(best: PublishBest, job: JobSpec, values: Values) -> Iterator[Fault]:
    hub = best.hub or job.hub
    if hub is None:
        yield Fault(
            path="best.hub",
            code="missing_field",
            message="`publish` needs to know where to: give `best.hub`, or `job.hub`",
        )
    elif best.hub is not None:
        for fault in values.of_values({"hub": hub.model_dump(mode="json", exclude_unset=True)}):
            yield fault.model_copy(update={"path": f"best.{fault.path}"})


def refit_faults(best: RefitBest, values: Values) -> Iterator[Fault]:
    """Of the values that `set` puts into the template."""
    refused = {path: reason for path in best.set if (reason := _reason(path))}
    for path, reason in refused.items():
        yield Fault(path=f"best.set.{path}", code="invalid_value", message=reason)
    for fault in values.of_values({p: v for p, v in best.set.items() if p not in refused}):
        given = {path for path in best.set if f"{fault.path}.".startswith(f"{path}.")}
        where = f"best.set.{fault.path}" if given else "best.set"
        near = whole_name(fault)
        if fault.code in _NAMES and fault.suggestion is not None and near is not None:
            message = fault.message.replace(f"`{fault.suggestion}`", f"`{near}`")
        else:
            message = fault.message if given else f"`job.{fault.path}`: {fault.message}"
        update = {"path": where, "message": message, "suggestion": near}
        yield fault.model_copy(update=update)


def _reason(path: str) -> str | None:
    current = fields.current_name(path)
    if current is not None:
        return f"an older name of the field: use `{current}`"
    reason = _NOT_SET.get(path.partition(".")[0])
    return None if reason is None else f"a refit does not change it: {reason}"
