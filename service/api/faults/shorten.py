"""Shortens a spec that has more faults than are listed, so that a hostile body costs little. Only a
faulty spec is shortened: one with more unknown fields, or a longer list or object, than any valid
spec has. It is still faulty afterwards.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel

from service.api.faults.walk import models_in
from service.contract.fields.types import MOST_ENTRIES
from service.contract.spec.dataset import MOST_SETS
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES, SWITCHES
from service.contract.training_arguments.trainer_defaults import DEFAULTS

MOST_FAULTS: Final = 100
"""Of a spec, in one answer: users do not read more, and finding the nearest names takes time."""
_OPTIONS: Final = (*TrainingSpec.model_fields, *ALIASES, *SWITCHES, *DEFAULTS)


def shortened(given: Any, models: tuple[type[BaseModel], ...] = (JobSpec,)) -> Any:
    """`given` for one of `models`, with at most MOST_FAULTS unknown fields in each section."""
    if not isinstance(given, dict):
        return given
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    known = _OPTIONS if TrainingSpec in models else fields
    kept: Iterable[Any] = given
    if len(given) > len(known) + MOST_FAULTS:
        unknown = islice((name for name in given if name not in known), MOST_FAULTS + 1)
        kept = (*(name for name in known if name in given), *unknown)
    return {
        name: _shortened_value(name, given[name], fields[name].annotation)
        if name in fields
        else given[name]
        for name in kept
    }


def _shortened_value(name: str, value: Any, annotation: Any) -> Any:
    if isinstance(value, list):
        return value[: MOST_ENTRIES + 1]
    if not isinstance(value, dict):
        return value
    models = tuple(models_in(annotation))
    if models:
        return shortened(value, models)
    if name == "validation":
        value = {
            key: _shortened_value("", value[key], None) for key in islice(value, MOST_SETS + 1)
        }
    return {key: value[key] for key in islice(value, MOST_ENTRIES + 1)}
