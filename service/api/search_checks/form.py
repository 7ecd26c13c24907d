"""Faults of a search's own sections: names, types, bounds, and the rules between them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.api.faults import constraints, names
from service.api.faults.shorten import MOST_FAULTS
from service.api.redaction import cut, shown
from service.api.schemas.problems import Fault
from service.contract.hub import HubSpec
from service.contract.search.objectives import Objective
from service.contract.search.pruners import PrunerSpec
from service.contract.search.samplers import SamplerSpec
from service.contract.search.space import Dimension
from service.contract.search.spec import KeepBest, PublishBest, RefitBest, SearchSpec
from service.contract.section import BrokenRulesError, SpecModel

_KINDS: Final[dict[str, tuple[str, tuple[type[SpecModel], ...]]]] = {
    "sampler": ("name", get_args(SamplerSpec)),
    "pruner": ("name", get_args(PrunerSpec)),
    "best": ("action", (KeepBest, PublishBest, RefitBest)),
}
"""Sections of several kinds: the field that names the kind, and the kinds."""


def parsed(given: dict[str, Any]) -> tuple[SearchSpec | None, list[Fault]]:
    """The search, or every fault of its form. `given` must have a valid `job`."""
    try:
        return SearchSpec.model_validate(given), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    faults = [fault for each in errors for fault in _faults(each, given)]
    unique = {(fault.path, fault.message): fault for fault in faults}
    return None, sorted(unique.values(), key=lambda fault: fault.path)[:MOST_FAULTS]


def _faults(error: ErrorDetails, given: dict[str, Any]) -> Iterator[Fault]:
    path, owner = _place(error["loc"], given)
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, BrokenRulesError):
        for sentence in raised.sentences:
            yield Fault(path=_named(sentence, path), code="conflict", message=sentence)
    elif error["type"] == "extra_forbidden":
        yield _unknown(path, error, owner)
    elif error["type"].startswith("union_tag"):
        yield _wrong_kind(path, given)
    elif error["type"] == "missing":
        yield Fault(path=path, code="missing_field", message="required, but not given")
    else:
        yield _wrong_value(path, error)


def _place(loc: tuple[int | str, ...], given: dict[str, Any]) -> tuple[str, type[SpecModel]]:
    """The path in the client's input, and the section that the last part belongs to."""
    parts = [part for part in loc if part != "[key]"]
    owner: type[SpecModel] = SearchSpec
    section = parts[0] if parts else ""
    if section in _KINDS and len(parts) > 1:
        kind = parts.pop(1)
        tag, models = _KINDS[str(section)]
        owner = next(model for model in models if model.model_fields[tag].default == kind)
        owner = HubSpec if "hub" in parts[1:-1] else owner
    elif section == "space" and len(parts) > 2:
        owner = Dimension
    elif section == "objective" and len(parts) > 1:
        owner = Objective
        if isinstance(given.get("objective"), dict):
            parts.pop(1)
    return ".".join(cut(str(part)) for part in parts), owner


def _named(sentence: str, path: str) -> str:
    """The first field that the sentence names, by its whole path."""
    quoted = sentence.split("`")[1::2]
    if path:
        return f"{path}.{quoted[0]}" if quoted and quoted[0] in Dimension.model_fields else path
    places = [name for name in quoted if name.partition(".")[0] in SearchSpec.model_fields]
    return places[0] if places else ""


def _unknown(path: str, error: ErrorDetails, owner: type[SpecModel]) -> Fault:
    near = names.nearest(path.rpartition(".")[2], owner.model_fields)
    hint = f"; did you mean `{near}`?" if near else ""
    return Fault(
        path=path,
        code="unknown_field",
        message=f"unknown field{hint}",
        given=shown(path, error["input"]),
        allowed=sorted(owner.model_fields),
        suggestion=near,
    )


def _wrong_kind(path: str, given: dict[str, Any]) -> Fault:
    tag, models = _KINDS[path]
    allowed = [str(model.model_fields[tag].default) for model in models]
    section = given.get(path)
    wrong = section.get(tag) if isinstance(section, dict) else section
    words = "must be " + " or ".join(f"`{name}`" for name in allowed)
    where = f"{path}.{tag}" if isinstance(section, dict) else path
    if wrong is None:
        message = f"required, but not given: {words}"
        return Fault(path=where, code="missing_field", message=message, allowed=allowed)
    near = names.nearest(wrong, allowed) if isinstance(wrong, str) else None
    hint = f"; did you mean `{near}`?" if near else ""
    return Fault(
        path=where,
        code="invalid_value",
        message=words + hint,
        given=shown(where, wrong),
        allowed=allowed,
        suggestion=near,
    )


def _wrong_value(path: str, error: ErrorDetails) -> Fault:
    given = shown(path, error["input"])
    wanted = constraints.kind(error["type"])
    if wanted is not None:
        message = f"must be {wanted}"
        return Fault(path=path, code="invalid_type", message=message, given=given, allowed=wanted)
    context = error.get("ctx", {})
    if "expected" in context:
        message = f"must be {context['expected'].replace(chr(39), '`')}"
    else:
        allowed = constraints.bounds(context)
        message = f"must be {allowed}" if allowed else error["msg"].removeprefix("Value error, ")
    return Fault(path=path, code="invalid_value", message=message, given=given)


def prefixed(prefix: str, faults: Sequence[Fault]) -> list[Fault]:
    """Faults of a job's spec as those of a part of the search's."""
    return [
        fault.model_copy(update={"path": f"{prefix}.{fault.path}".rstrip(".")}) for fault in faults
    ]
