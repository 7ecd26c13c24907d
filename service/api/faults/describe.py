"""Words an error of pydantic for the author of the spec."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from pydantic_core import ErrorDetails

from service.api.faults import constraints, hints, names
from service.api.faults.redaction import shown
from service.api.faults.walk import Path, Place, as_given, at, choices, dotted, kinds
from service.api.schemas.problems import Fault
from service.contract.fields import patterns
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES, SWITCHES
from service.contract.training_arguments.moved_options import ELSEWHERE
from service.contract.training_arguments.refused_options import REFUSED, REMOVED
from service.contract.training_arguments.script_options import NOT_NEEDED, PLACES

_COLUMN: Final = "_column"
_OF_JSON: Final = (str, int, float, list, dict, type(None))
"""Anything else stands for a number that cannot be stored."""
_FROM_SCRATCH: Final = "model.config."


def describe(error: ErrorDetails, place: Place) -> Fault:
    """The fault that corresponds to an error."""
    return _WORDS.get(error["type"], _other)(error, place)


def conflict(sentence: str, place: Place) -> Fault:
    """A broken rule of the section at `place`: reported at the first field it names that was given,
    or if none was, at the first it names, which is then missing."""
    named = named_fields(sentence, place)
    given = (path for path in named if at(place.value, path) is not None)
    path = next(given, named[0] if named else ())
    return Fault(path=dotted((*place.path, *path)), code="conflict", message=sentence)


def named_fields(message: str, place: Place) -> list[Path]:
    """The fields that a rule of the section names, by the names that the client used."""
    # The name in `name: value`.
    quoted = (part.partition(":")[0] for part in message.split("`")[1::2])
    paths = [tuple(name.split(".")) for name in quoted]
    return [as_given(place.value, path) for path in paths if _is_field(path[0], place)]


def _is_field(name: str, place: Place) -> bool:
    """Includes fields given by an older name, and refused ones."""
    is_given = name in ALIASES or name in SWITCHES or name in place.value
    return is_given or any(name in model.model_fields for model in place.models)


def _unknown(error: ErrorDetails, place: Place) -> Fault:
    name, path = str(place.path[-1]), dotted(place.path)
    known = _known_elsewhere(name, place)
    if known is not None:
        code, message, suggestion = known
        given = _given(error, place)
        return Fault(path=path, code=code, message=message, given=given, suggestion=suggestion)
    assert place.owner is not None
    near = names.nearest_field(name, place.owner, place.spec)
    if near is None:
        return unknown(error, place, None, "")
    if near in JobSpec.model_fields and near not in place.owner.model_fields:
        section = dotted(place.path[:-1])
        hint = f"; `{near}` is a field of the spec itself, next to `{section.partition('.')[0]}`"
        return unknown(error, place, near, hint)
    target = near if "." in near else dotted((*place.path[:-1], near))
    if near == path:  # the name is right, for another kind of a union
        return unknown(error, place, None, " of this kind")
    if names.lacks(place.spec, target):
        section = target.rpartition(".")[0]
        return unknown(error, place, None, f"; `{near}` exists for other kinds of `{section}`")
    meant = f"did you mean `{near}`?"
    return unknown(error, place, near, "; " + " ".join([meant, *_then(name, target, error, place)]))


def _then(name: str, target: str, error: ErrorDetails, place: Place) -> Iterator[str]:
    """Sentences: what to do besides giving the value at `target`, so that no fault follows."""
    if at(place.spec, tuple(target.split("."))) is not None:
        yield "It is given already: remove one of the two."
        return
    form = hints.written(target, error["input"], name)
    if form is not None:
        yield f"Write `{form}`."
    needed = [f"`{each}`" for each in names.needs(place.spec, target)]
    if needed:
        yield f"`{target.partition('.')[0]}` also needs {' and '.join(needed)}."


def unknown(error: ErrorDetails, place: Place, near: str | None, hint: str) -> Fault:
    """A name that the section at `place` does not have; `near` is the one that is suggested."""
    path = dotted(place.path)
    return Fault(
        path=path,
        code="unknown_field",
        message=f"unknown field{hint}",
        given=_given(error, place),
        allowed=sorted(place.owner.model_fields) if place.owner else None,
        suggestion=near,
    )


def _known_elsewhere(name: str, place: Place) -> tuple[str, str, str | None] | None:
    """Code, message and suggestion for a name that TrainingArguments or the scripts have."""
    for_training = place.owner in (TrainingSpec, JobSpec)
    if for_training and name in ELSEWHERE:
        return "moved_option", f"not a field of the spec: {ELSEWHERE[name]}", None
    refused = {**REFUSED, **REMOVED, **NOT_NEEDED} if for_training else NOT_NEEDED
    if name in refused:
        return "unsupported_option", f"refused: {refused[name]}", None
    target = PLACES.get(name)
    if target is None or target == dotted(place.path):
        return None
    if not names.lacks(place.spec, target):
        if target.startswith(_FROM_SCRATCH):
            return _from_scratch(target, place.spec)
        return "moved_option", f"not a field of this section: use `{target}`", target
    if name.endswith(_COLUMN):
        target = "dataset.columns"
        return "moved_option", f"not a field of this section: use `{target}`", target
    return "unsupported_option", f"this task does not have it; others have it as `{target}`", None


def _from_scratch(target: str, spec: Any) -> tuple[str, str, str | None]:
    if at(spec, ("model", "name_or_path")) is not None or at(spec, ("model", "job")) is not None:
        message = f"refused: it follows from the model; `{target}` is for one without weights"
        return "unsupported_option", message, None
    message = f"use `{target}`, for a model without weights; it also needs `model.tokenizer_name`"
    return "moved_option", f"not a field of this section: {message}", target


def _missing(_error: ErrorDetails, place: Place) -> Fault:
    allowed = list(choices(place.field)) if place.field else []
    return Fault(
        path=dotted(place.path),
        code="missing_field",
        message="required, but not given",
        allowed=allowed or (place.field.description if place.field else None),
    )


def _wrong_kind(_error: ErrorDetails, place: Place) -> Fault:
    """The discriminator of a union is wrong or missing."""
    assert place.field is not None
    tag = str(place.field.discriminator)
    allowed = [kind for model in place.models for kind in kinds(model, tag)]
    if isinstance(place.value, str):  # short for an object of that kind
        return _not_among(dotted(place.path), place.value, allowed)
    path = (*place.path, tag)
    given = place.value.get(tag) if isinstance(place.value, dict) else None
    if given is None:
        message = "required, but not given: " + _one_of(allowed)
        return Fault(path=dotted(path), code="missing_field", message=message, allowed=allowed)
    return _not_among(dotted(path), given, allowed)


def _choice(error: ErrorDetails, place: Place) -> Fault:
    allowed = list(choices(place.field)) if place.field else []
    return _not_among(dotted(place.path), error["input"], allowed)


def _given(error: ErrorDetails, place: Place) -> Any:
    """Hidden if any name of the path, however long, says that it is a secret."""
    return shown(".".join(map(str, place.path)), error["input"])


def _not_among(path: str, given: Any, allowed: list[str]) -> Fault:
    near = names.nearest_value(path, given, allowed) if isinstance(given, str) else None
    hint = f"; did you mean `{near}`?" if near else ""
    return Fault(
        path=path,
        code="invalid_value",
        message=_one_of(allowed) + hint,
        given=shown(path, given),
        allowed=allowed,
        suggestion=near,
    )


def _one_of(allowed: list[str]) -> str:
    return "must be " + " or ".join(f"`{item}`" for item in allowed)


def _key(error: ErrorDetails, place: Place) -> Fault:
    allowed = constraints.bounds(error.get("ctx", {}))
    message = f"invalid name: it must be {allowed}" if allowed else _own_words(error)
    return Fault(path=dotted(place.path), code="invalid_value", message=message, allowed=allowed)


def _own_words(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ")


def _other(error: ErrorDetails, place: Place) -> Fault:
    """A wrong type, a number out of bounds, a text that does not match."""
    if place.is_key:
        return _key(error, place)
    path = dotted(place.path)
    given = _given(error, place)
    wanted = constraints.kind(error["type"])
    if wanted is not None:
        if not isinstance(error["input"], _OF_JSON):
            wanted = f"{wanted}, {_range(place) or 'finite and of at most 18 digits'}"
        message = f"must be {wanted}{hints.of_value(path, error['input'])}"
        return Fault(path=path, code="invalid_type", message=message, given=given, allowed=wanted)
    allowed = _range(place) or constraints.bounds(error.get("ctx", {}))
    message = f"must be {allowed}" if allowed else _own_words(error)
    if error.get("ctx", {}).get("pattern") == patterns.FILE_ID:
        message += ": upload the file first"
    return Fault(path=path, code="invalid_value", message=message, given=given, allowed=allowed)


def _range(place: Place) -> str | None:
    """All bounds of a number, not only the one that was broken."""
    found: dict[str, Any] = {}
    for item in place.field.metadata if place.field else ():
        found.update(
            {
                key: value
                for key in ("ge", "gt", "le", "lt")
                if (value := getattr(item, key, None)) is not None
            }
        )
    return constraints.bounds(found)


_WORDS: Final[dict[str, Callable[[ErrorDetails, Place], Fault]]] = {
    "extra_forbidden": _unknown,
    "missing": _missing,
    "union_tag_invalid": _wrong_kind,
    "union_tag_not_found": _wrong_kind,
    "literal_error": _choice,
}
