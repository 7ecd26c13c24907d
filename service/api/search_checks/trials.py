"""Why a trial's spec is refused."""

from collections.abc import Callable
from typing import Any, Final

from service.api.faults.collect import Findings, collect
from service.api.schemas.problems import Fault
from service.api.search_checks import objective
from service.contract.search.spec import SearchSpec

_CONFLICT: Final = {"code": "conflict", "allowed": None, "suggestion": None}


def faults(
    job: Any, search: SearchSpec | None, examine: Callable[[Any], Findings] = collect
) -> list[Fault]:
    """Those of the job, else its conflicts with what `search` needs, if there is one."""
    found = examine(job)
    if found.faults or found.spec is None or search is None:
        return found.faults
    return [
        fault.model_copy(update=_CONFLICT)
        for fault in objective.faults(found.spec, search.objectives, search.pruner)
    ]


def refusals(job: Any, search: SearchSpec | None) -> list[str]:
    """As sentences; without `search` those of the job alone."""
    return [f"{fault.path}: {fault.message}" for fault in faults(job, search)]
