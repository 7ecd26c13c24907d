"""Options of a pasted TrainingArguments that are at their defaults and have no effect here."""

from collections.abc import Iterator
from typing import Any, Final

from service.api.faults.redaction import cut, shown
from service.api.faults.shorten import shortened
from service.api.schemas.jobs import IgnoredOption
from service.contract.spec.training import TrainingSpec, ignored_options
from service.contract.training_arguments.aliases import (
    ALIASES,
    DIFFERENCES,
    OLDER_VALUES,
    SWITCHES,
    has_no_effect,
)
from service.contract.training_arguments.moved_options import ELSEWHERE
from service.contract.training_arguments.refused_options import REFUSED, REMOVED
from service.contract.training_arguments.script_options import PLACES

_REASONS: Final = {**REFUSED, **REMOVED, **ELSEWHERE}


def ignored(body: Any) -> list[IgnoredOption]:
    """The ignored options of `training` in a spec as the client wrote it, sorted by name."""
    training = body.get("training") if isinstance(body, dict) else None
    if not isinstance(training, dict):
        return []
    training = shortened(training, (TrainingSpec,))
    given = {name: value for name, value in training.items() if isinstance(name, str)}
    return [
        IgnoredOption(path=path, given=shown(path, given[name]), reason=reason)
        for name, reason in sorted(_reasons(given))
        if (path := f"training.{cut(name)}")
    ]


def _reasons(training: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ignored_options(training):
        yield name, f"it is at its default; {_REASONS.get(name) or f'use `{PLACES[name]}`'}"
    for name in training:
        if name in ALIASES and has_no_effect(name, training[name]):
            yield name, f"an older name of `{ALIASES[name]}`, which has no effect at this value"
        if name in SWITCHES and training[name] in (None, False):
            yield name, f"`false` is the default; today's option is `{SWITCHES[name][0]}`"
    for name, values in OLDER_VALUES.items():
        value = training.get(name)
        if isinstance(value, str) and value in values:
            yield name, f"`{value}` is read as `{values[value]}`; {DIFFERENCES[value]}"
