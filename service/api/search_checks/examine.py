"""A search's spec as it runs, or every fault of it at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from service.api.faults.collect import Findings as JobFindings
from service.api.faults.shorten import MOST_FAULTS
from service.api.schemas.jobs import SpecWarning
from service.api.schemas.problems import Fault
from service.api.search_checks import expectations, form, objective
from service.api.search_checks.best import publish_faults, refit_faults
from service.api.search_checks.fields import typed
from service.api.search_checks.values import Examine, Values
from service.contract.search import defaults
from service.contract.search.spec import PublishBest, RefitBest, SearchSpec
from service.contract.spec.spec import JobSpec

_STAND_IN: Final = {
    "task": "causal-lm",
    "model": {"name_or_path": "a/model"},
    "dataset": {"source": "hub", "name": "some/data"},
}
"""For the template while it is faulty: the search's own sections are checked all the same."""


@dataclass(frozen=True)
class Findings:
    spec: SearchSpec | None = None
    """With the defaults of the task for what was left out; None if it is faulty."""
    faults: list[Fault] = field(default_factory=list)
    warnings: list[SpecWarning] = field(default_factory=list)


def examine_search(
    given: Any, examine_job: Examine, warnings_of: Callable[[JobSpec], list[SpecWarning]]
) -> Findings:
    """`examine_job`: every fault of a job's spec, on this server."""
    if not isinstance(given, dict):
        return _faulty([Fault(path="", code="invalid_type", message="must be an object")])
    faults, job = _template(given, examine_job)
    search, own = form.parsed({**given, "job": _STAND_IN if job is None else given["job"]})
    faults += own
    if search is None:
        return _faulty(faults)
    if job is None:
        return _faulty([*faults, *_of_fields(given.get("job"), search, examine_job)])
    accepted = _resolved(search, job)
    faults += _of_whole(search, accepted, examine_job)
    if faults:
        return _faulty(faults)
    warned = [
        each.model_copy(update={"path": f"job.{each.path}"}) for each in warnings_of(accepted.job)
    ]
    return Findings(spec=accepted, warnings=[*warned, *expectations.warnings(accepted)])


def _faulty(faults: list[Fault]) -> Findings:
    unique = {(fault.path, fault.code, fault.message): fault for fault in faults}
    return Findings(faults=sorted(unique.values(), key=lambda fault: fault.path)[:MOST_FAULTS])


def _template(given: dict[str, Any], examine_job: Examine) -> tuple[list[Fault], JobSpec | None]:
    if "job" not in given:
        return [Fault(path="job", code="missing_field", message="required, but not given")], None
    found: JobFindings = examine_job(given["job"])
    faults = [
        fault.model_copy(update={"path": f"job.{fault.path}".rstrip(".")}) for fault in found.faults
    ]
    return faults, None if faults else found.spec


def _of_fields(template: Any, search: SearchSpec, examine_job: Examine) -> Iterator[Fault]:
    """The faults of the space's fields one by one, where the template is faulty."""
    if isinstance(template, dict) and search.space is not None:
        task = template.get("task")
        whole = {**template, "task": {"type": task}} if isinstance(task, str) else template
        yield from Values(whole, search.space, examine_job).faults()


def _resolved(search: SearchSpec, job: JobSpec) -> SearchSpec:
    """With what was left out."""
    space = search.space if search.space is not None else defaults.space(job)
    objectives = search.objective or [objective.default(job)]
    return search.model_copy(
        update={
            "space": {path: typed(path, dimension) for path, dimension in space.items()},
            "objective": objective.resolved(objectives),
            "pruner": defaults.with_unit(search.pruner, job),
            "job": job,
        }
    )


def _of_whole(given: SearchSpec, accepted: SearchSpec, examine_job: Examine) -> Iterator[Fault]:
    """Faults of the search as a whole. `given`: the spec before its defaults were filled in."""
    # As trials are made: what the template leaves out stays open.
    template = accepted.job.model_dump(mode="json", exclude_unset=True)
    values = Values(template, accepted.dimensions, examine_job, accepted)
    yield from values.faults()
    # Again, with the types of the ranges and the task's space.
    yield from form.conflicts(accepted.contradictions())
    yield from objective.faults(accepted.job, accepted.objectives, accepted.pruner, given)
    yield from objective.pruner_faults(accepted.job, accepted.dimensions, accepted.pruner)
    if isinstance(accepted.best, PublishBest):
        yield from publish_faults(accepted.best, accepted.job, values)
    elif isinstance(accepted.best, RefitBest):
        yield from refit_faults(accepted.best, values)
