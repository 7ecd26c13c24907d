"""Why a trial's spec is refused."""

from typing import Any

from service.api.faults.collect import collect
from service.api.schemas.problems import Fault
from service.api.search_checks import objective
from service.contract.search.spec import SearchSpec


def faults(job: Any, search: SearchSpec) -> list[Fault]:
    """Those of the job, else those of what the search needs of it."""
    found = collect(job)
    if found.spec is None:
        return found.faults
    return list(objective.faults(found.spec, search.objectives, search.pruner))


def refusals(job: Any, search: SearchSpec | None) -> list[str]:
    """As sentences; without `search` those of the job alone."""
    found = collect(job).faults if search is None else faults(job, search)
    return [f"{fault.path}: {fault.message}" for fault in found]
