"""Names of older releases of transformers for options of `training`, and two names with different
values.

A dump of TrainingArguments has both names of an option, so an older name at its default has no
effect. Any other two names of one option must agree: choosing one of them in silence would train
something other than what was requested.
"""

from collections.abc import Iterator
from typing import Any, Final

from service.contract.fields.section import Refused

ALIASES: Final[dict[str, str]] = {
    "evaluation_strategy": "eval_strategy",
    "warmup_ratio": "warmup_steps",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}

# Switches of older releases of transformers → the option and the value that they mean.
SWITCHES: Final[dict[str, tuple[str, str]]] = {
    "adafactor": ("optim", "adafactor"),
    "group_by_length": ("train_sampling_strategy", "group_by_length"),
}

# Values of older releases of transformers → those that replaced them.
OLDER_VALUES: Final[dict[str, dict[str, str]]] = {
    "optim": {"adamw_hf": "adamw_torch"},
}
# How these differ.
DIFFERENCES: Final[dict[str, str]] = {
    "adamw_hf": "the two apply `adam_epsilon` and `weight_decay` slightly differently",
}

# Defaults of older names, which have no effect; neither has null.
_OLDER_DEFAULTS: Final[dict[str, Any]] = {
    "warmup_ratio": 0,
    "no_cuda": False,
    "gradient_checkpointing": False,
}


def has_no_effect(older: str, value: Any) -> bool:
    """Whether the older name is at its default."""
    has_default = older in _OLDER_DEFAULTS and isinstance(value, (bool, int, float))
    return value is None or (has_default and bool(value == _OLDER_DEFAULTS[older]))


def with_current_names(options: dict[str, Any]) -> tuple[dict[str, Any], Refused]:
    """`options` by the names of TrainingSpec, and those whose names disagree."""
    older = {*ALIASES, *SWITCHES}
    renamed = {
        name: _current_value(name, value) for name, value in options.items() if name not in older
    }
    disagreeing = [*_follow_switches(options, renamed), *_follow_aliases(options, renamed)]
    return renamed, disagreeing


def _current_value(name: str, value: Any) -> Any:
    values = OLDER_VALUES.get(name, {})
    return values.get(value, value) if isinstance(value, str) else value


def _follow_switches(options: dict[str, Any], renamed: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for switch, (option, value) in SWITCHES.items():
        given = options.get(switch)
        if given is not None and not isinstance(given, bool):
            yield option, f"`{switch}` must be true or false"
        elif given and renamed.setdefault(option, value) != value:
            yield (
                option,
                f"`{switch}: true` and `{option}: {_shown(renamed[option])}` contradict each "
                "other: give one of them",
            )


def _follow_aliases(options: dict[str, Any], renamed: dict[str, Any]) -> Iterator[tuple[str, str]]:
    given_as = {name: name for name in renamed}
    for older, name in ALIASES.items():
        value = options.get(older)
        if value is None or (name in renamed and has_no_effect(older, value)):
            continue
        if older == "warmup_ratio":
            if _is_number(value) and value >= 1:  # it would mean a number of steps
                yield (
                    name,
                    "`warmup_ratio` must be below 1; for a number of steps use `warmup_steps`",
                )
            if _is_number(renamed.get(name)) and renamed[name] == 0:
                renamed.pop(name)  # 0 steps leave the ratio in force, as in transformers
        if renamed.setdefault(name, value) != value:
            yield (
                name,
                f"`{older}: {_shown(value)}` and `{given_as[name]}: {_shown(renamed[name])}` are "
                "two names of one option and disagree: give one of them",
            )
        given_as.setdefault(name, older)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """As YAML has it; anything long or nested only by its kind."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    is_short = isinstance(value, str) and len(value) <= 40 and not set("`;\n") & set(value)
    return value if is_short else "…"
