"""A search's spec as it runs, or every fault of it at once."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.api.faults.collect import Findings as JobFindings
from service.api.faults.collect import collect
from service.api.faults.shorten import MOST_FAULTS
from service.api.schemas.jobs import SpecWarning
from service.api.schemas.problems import Fault
from service.api.search_checks import combinations, expectations, form, objective
from service.api.search_checks.best import publish_faults, refit_faults
from service.api.search_checks.values import Examine, Values, range_faults, typed
from service.contract.search import defaults
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
    checks = _Checks(search, accepted, examine_job)
    faults += checks.faults()
    if faults:
        return _faulty(faults)
    warned = [
        each.model_copy(update={"path": f"job.{each.path}"}) for each in warnings_of(accepted.job)
    ]
    return Findings(
        spec=accepted, warnings=[*warned, *expectations.warnings(accepted), *checks.warnings]
    )


def _faulty(faults: list[Fault]) -> Findings:
    unique = {(fault.path, fault.code, fault.message): fault for fault in faults}
    return Findings(faults=sorted(unique.values(), key=lambda fault: fault.path)[:MOST_FAULTS])


def _template(given: dict[str, Any], examine_job: Examine) -> tuple[list[Fault], JobSpec | None]:
    if "job" not in given:
        return [Fault(path="job", code="missing_field", message="required, but not given")], None
    found: JobFindings = examine_job(given["job"])
    faults = form.prefixed("job", found.faults)
    return faults, None if faults else found.spec


def _of_fields(template: Any, search: SearchSpec, examine_job: Examine) -> Iterator[Fault]:
    """The faults of the space's fields one by one, where the template is faulty."""
    if isinstance(template, dict) and search.space is not None:
        yield from range_faults(search.space)
        yield from Values(template, search.space, examine_job).faults()


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


class _Checks:
    """What only the whole search decides."""

    def __init__(self, given: SearchSpec, accepted: SearchSpec, examine_job: Examine) -> None:
        self._given = given
        self._accepted = accepted
        # As trials are made: with what the template leaves out still open.
        self._template = accepted.job.model_dump(mode="json", exclude_unset=True)
        self._space = accepted.dimensions
        self._values = Values(self._template, self._space, examine_job)
        self.warnings: list[SpecWarning] = []

    def faults(self) -> list[Fault]:
        accepted = self._accepted
        found = [
            *range_faults(self._given.dimensions),
            *self._values.faults(),
            # Again, with the types of the ranges and the task's space.
            *form.contradictions(accepted),
            *objective.faults(accepted.job, accepted.objectives, accepted.pruner, self._given),
            *objective.pruner_faults(accepted.job, self._space, accepted.pruner),
            *self._of_best(),
        ]
        return [*found, *self._of_combinations()]

    def _of_best(self) -> Iterator[Fault]:
        best = self._accepted.best
        if isinstance(best, PublishBest):
            yield from publish_faults(best, self._accepted.job, self._values)
        elif isinstance(best, RefitBest):
            yield from refit_faults(best, self._values)

    def _of_combinations(self) -> Iterator[Fault]:
        found = combinations.refused(
            self._template,
            self._space,
            self._values.good,
            self._refusals,
            self._values.most,
        )
        for each in found:
            if each.is_certain:
                yield each.fault
            else:
                self.warnings.append(expectations.of_refused(each.fault))

    def _refusals(self, spec: Mapping[str, Any]) -> list[Fault]:
        """Of a trial's spec: those of the job, else those of what the search needs of it."""
        found = collect(spec)
        if found.spec is None:
            return found.faults
        faults = objective.faults(found.spec, self._accepted.objectives, self._accepted.pruner)
        return [fault.model_copy(update={"code": "conflict"}) for fault in faults]
