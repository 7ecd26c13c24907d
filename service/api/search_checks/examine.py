"""A search's spec as it runs, or every fault of it at once."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.api.faults.collect import Findings as JobFindings
from service.api.faults.shorten import MOST_FAULTS
from service.api.schemas.jobs import SpecWarning
from service.api.schemas.problems import Fault
from service.api.search_checks import form, objective
from service.api.search_checks.values import Values
from service.contract.search import defaults
from service.contract.search.space import Dimension
from service.contract.search.spec import PublishBest, RefitBest, SearchSpec
from service.contract.spec import JobSpec

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
    given: Any,
    examine_job: Callable[[Any], JobFindings],
    warnings_of: Callable[[JobSpec], list[SpecWarning]],
) -> Findings:
    """`examine_job`: every fault of a job's spec, on this server."""
    if not isinstance(given, dict):
        fault = Fault(path="", code="invalid_type", message="must be an object")
        return Findings(faults=[fault])
    template = given.get("job")
    of_job = examine_job(template)
    faults = form.prefixed("job", of_job.faults)
    if "job" not in given:
        faults = [Fault(path="job", code="missing_field", message="required, but not given")]
    job = None if faults else of_job.spec
    search, own = form.parsed({**given, "job": _STAND_IN if job is None else template})
    faults += own
    if search is None or job is None or not isinstance(template, dict):
        return Findings(faults=sorted(faults, key=lambda fault: fault.path)[:MOST_FAULTS])
    search = search.model_copy(update={"pruner": defaults.with_unit(search.pruner, job)})
    space = search.space if search.space is not None else defaults.space(job)
    values = Values(template, space, examine_job)
    faults += _faults(search, job, space, values)
    if faults:
        return Findings(faults=sorted(faults, key=lambda fault: fault.path)[:MOST_FAULTS])
    accepted = _resolved(search, job, space, values)
    warned = [*_prefixed(warnings_of(job)), *_template_outside(accepted)]
    return Findings(spec=accepted, warnings=warned)


def _faults(
    search: SearchSpec, job: JobSpec, space: Mapping[str, Dimension], values: Values
) -> Iterator[Fault]:
    yield from values.faults()
    yield from objective.faults(job, search.objective, search.pruner)
    yield from objective.pruner_faults(job, space, search.pruner)
    if isinstance(search.best, PublishBest) and (search.best.hub or job.hub) is None:
        yield Fault(
            path="best.hub",
            code="missing_field",
            message="`publish` needs to know where to: give `best.hub`, or `job.hub`",
        )
    if isinstance(search.best, RefitBest):
        for fault in values.of_values(search.best.set):
            yield fault.model_copy(update={"path": f"best.set.{fault.path}"})


def _resolved(
    search: SearchSpec, job: JobSpec, space: Mapping[str, Dimension], values: Values
) -> SearchSpec:
    """With what was left out."""
    objectives = search.objective or [objective.default(job)]
    typed = {path: _typed(path, dimension, values) for path, dimension in space.items()}
    update = {"space": typed, "objective": objective.resolved(objectives), "job": job}
    return search.model_copy(update=update)


def _typed(path: str, dimension: Dimension, values: Values) -> Dimension:
    if dimension.choices is not None or dimension.type is not None:
        return dimension
    is_integer = dimension.is_integer and not values.takes_fractions(path, dimension)
    return dimension.model_copy(update={"type": "int" if is_integer else "float"})


def _prefixed(warned: list[SpecWarning]) -> list[SpecWarning]:
    return [each.model_copy(update={"path": f"job.{each.path}"}) for each in warned]


def _template_outside(search: SearchSpec) -> Iterator[SpecWarning]:
    if not search.template_trial:
        return
    template = defaults.template_values(search.job, search.dimensions)
    for path, dimension in search.dimensions.items():
        if dimension.is_met(template) and not dimension.holds(template[path]):
            yield SpecWarning(
                path=f"job.{path}",
                code="outside_of_space",
                message=f"the template has {template[path]!r}, which is not in `space.{path}`: no "
                "trial has the template's own values",
            )
