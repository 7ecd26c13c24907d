"""The spec of a trial's job, and of the job that trains with the best values again."""

from collections.abc import Mapping
from typing import Any, Final

from service.contract.failures import Failure, FailureCode
from service.contract.search.space import with_values
from service.contract.search.spec import PublishBest, RefitBest, SearchSpec
from service.contract.spec.spec import JobSpec
from service.searches.memory import Memory

_MOST_FAULTS: Final = 5
_LONGEST_NAME: Final = 200


class RefusedError(Exception):
    """The spec refuses this combination of values, though it accepts each of them alone."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def of_trial(memory: Memory, number: int, values: Mapping[str, Any]) -> JobSpec:
    """Nothing is pushed or registered: that is for the best trial. Raises RefusedError."""
    spec = memory.given
    template = {name: value for name, value in spec["job"].items() if name != "hub"}
    tracking = dict(template.get("tracking") or {})
    tracking.pop("register_as", None)
    tracking.pop("register_alias", None)
    tracking.pop(
        "run_name", None
    )  # the search's run has it: the trials' runs need names that differ
    job = with_values({**template, "tracking": tracking}, values)
    job["name"] = _named(spec, f"trial {number}")
    return _accepted(job, memory.refusals(job, memory.spec))


def of_refit(memory: Memory, best: RefitBest, values: Mapping[str, Any]) -> JobSpec:
    """Raises RefusedError."""
    job = with_values(with_values(memory.given["job"], values), best.set)
    job["name"] = _named(memory.given, "refit")
    return _accepted(job, memory.refusals(job, None))


def hub_of(search: SearchSpec) -> Any:
    """Where the best model is pushed."""
    given = search.best.hub if isinstance(search.best, PublishBest) else None
    return given or search.job.hub


def _named(spec: Mapping[str, Any], what: str) -> str:
    name = spec.get("name") or spec["job"].get("name") or "search"
    return f"{name[: _LONGEST_NAME - len(what) - 1]} {what}"


def _accepted(job: dict[str, Any], sentences: list[str]) -> JobSpec:
    if sentences:
        message = "The spec refuses these values together: " + "; ".join(sentences[:_MOST_FAULTS])
        raise RefusedError(
            Failure.from_code(
                FailureCode.INVALID_OPTION,
                message[:2000],
                action="No action needed if few trials fail like this. Otherwise vary fewer fields "
                "together, or name in `when` for which values of the others a field varies.",
            )
        )
    return JobSpec.model_validate(job)
