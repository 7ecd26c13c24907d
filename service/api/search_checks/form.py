"""Faults of a search's own sections: names, types, bounds, and the rules between them."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.api.faults import names
from service.api.faults.describe import conflict, describe, unknown
from service.api.faults.shorten import MOST_FAULTS
from service.api.faults.walk import Place, locate
from service.api.schemas.problems import Fault
from service.contract.fields.section import BrokenRulesError
from service.contract.search.space import Dimension
from service.contract.search.spec import SearchSpec

_INTEGER: Final = "constrained-int"
_DIMENSION: Final = "a list of values, or an object with `low` and `high`"
_OTHER_NAMES: Final = {
    # What Ray, W&B, SigOpt and Optuna call them.
    **dict.fromkeys(("min", "lower", "minimum", "start"), "low"),
    **dict.fromkeys(("max", "upper", "maximum", "end", "stop"), "high"),
    **dict.fromkeys(("values", "options", "categories", "grid", "categorical"), "choices"),
    **dict.fromkeys(("q", "quantization"), "step"),
    **dict.fromkeys(("loguniform", "log_uniform", "log_scale", "distribution"), "log"),
}


def parsed(given: dict[str, Any]) -> tuple[SearchSpec | None, list[Fault]]:
    """The search, or every fault of its form. `given` must have a valid `job`."""
    try:
        return SearchSpec.model_validate(given), []
    except ValidationError as error:
        # A number has an error as an integer and one as a float: keep one of them.
        errors = (each for each in error.errors(include_url=False) if _INTEGER not in each["loc"])
    return None, [fault for each in islice(errors, MOST_FAULTS) for fault in _faults(each, given)]


def conflicts(sentences: Iterable[str]) -> Iterator[Fault]:
    """Broken rules between the sections, at the first place that the sentence names: fields of the
    space have dots in their names."""
    for sentence in sentences:
        quoted = sentence.split("`")[1::2]
        places = (name for name in quoted if name.partition(".")[0] in SearchSpec.model_fields)
        yield Fault(path=next(places, ""), code="conflict", message=sentence)


def _faults(error: ErrorDetails, given: dict[str, Any]) -> Iterator[Fault]:
    place = locate(error["loc"], given, SearchSpec)
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, BrokenRulesError) and place.path:
        yield from (conflict(sentence, place) for sentence in raised.sentences)
    elif isinstance(raised, BrokenRulesError):
        yield from conflicts(raised.sentences)
    elif error["type"] == "extra_forbidden":
        yield _unknown(error, place)
    elif place.models == (Dimension,) and error["type"] == "model_type":
        update = {"message": f"must be {_DIMENSION}", "allowed": _DIMENSION}
        yield describe(error, place).model_copy(update=update)
    else:
        yield describe(error, place)


def _unknown(error: ErrorDetails, place: Place) -> Fault:
    assert place.owner is not None
    name = str(place.path[-1])
    near = _OTHER_NAMES.get(name) if place.owner is Dimension else None
    near = near or names.nearest(name, place.owner.model_fields)
    return unknown(error, place, near, f"; did you mean `{near}`?" if near else "")
