"""Values of `lr_scheduler_kwargs` that a schedule refuses, known before it is built."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_DEFAULT_LR_END: Final = 1e-7
"""Of transformers, for `polynomial`."""
_SHAPES: Final = ("linear", "cosine", "1-sqrt")
_AMONG: Final[dict[str, tuple[str, ...]]] = {
    "decay_type": _SHAPES,
    "mode": ("min", "max"),
    "threshold_mode": ("rel", "abs"),
    "warmup_type": _SHAPES,
}
_Rule = Callable[[Mapping[str, Any], float], Iterator[str]]


def faults(schedule: str, given: Mapping[str, Any], learning_rate: float) -> Iterator[str]:
    """A sentence for each value, or missing one, that ends the training before its first step."""
    for name, values in _AMONG.items():
        if name in given and given[name] not in values:
            known = ", ".join(f"`{value}`" for value in values)
            yield f"`lr_scheduler_kwargs` has `{name}: {given[name]}`, which must be one of {known}"
    if "factor" in given and _number(given["factor"]) >= 1:
        yield f"`lr_scheduler_kwargs` has `factor: {given['factor']}`, which must be below 1"
    if schedule in _RULES:
        yield from _RULES[schedule](given, learning_rate)


def _polynomial(given: Mapping[str, Any], learning_rate: float) -> Iterator[str]:
    end = given.get("lr_end", _DEFAULT_LR_END)
    if _number(end) >= learning_rate:
        yield (
            f"`lr_scheduler_kwargs` has `lr_end: {end}`, which must be below `learning_rate`"
            if "lr_end" in given
            else f"`learning_rate` must be above the rate at which `polynomial` ends, {end:g}: "
            "raise it, or give `lr_end` in `lr_scheduler_kwargs`"
        )


def _one_minimum(given: Mapping[str, Any], _learning_rate: float) -> Iterator[str]:
    found = [name for name in ("min_lr", "min_lr_rate") if given.get(name) is not None]
    if len(found) != 1:
        yield (
            "`lr_scheduler_kwargs` must have one of `min_lr` and `min_lr_rate`, and has "
            f"{'both' if found else 'none'}"
        )


def _stable_decay(given: Mapping[str, Any], _learning_rate: float) -> Iterator[str]:
    if given.get("num_decay_steps") is None:
        yield (
            "`lr_scheduler_kwargs` must have `num_decay_steps`: in how many of the last steps the "
            "rate falls"
        )


def _number(value: Any) -> float:
    """NaN, which is not above or below anything, for what is not a number."""
    return value if isinstance(value, int | float) else float("nan")


_RULES: Final[dict[str, _Rule]] = {
    "polynomial": _polynomial,
    "cosine_with_min_lr": _one_minimum,
    "cosine_warmup_with_min_lr": _one_minimum,
    "warmup_stable_decay": _stable_decay,
}
