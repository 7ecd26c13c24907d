"""Optimizers and schedules by their names in transformers, with the arguments each takes.

`Optimizer` and `Schedule` are the same names as types, for the spec's schema; tests hold all of it
against the installed transformers.
"""

from typing import Final, Literal

Optimizer = Literal[
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_4bit",
    "adamw_torch_8bit",
    "adafactor",
    "sgd",
    "adagrad",
    "rmsprop",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "ademamix",
    "ademamix_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "lion_32bit",
    "lion_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop_bnb",
    "rmsprop_bnb_32bit",
    "rmsprop_bnb_8bit",
]

Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
    "greedy",
]

Sampling = Literal["random", "sequential", "group_by_length"]

_LOW_BIT: Final = ("block_size", "bf16_stochastic_round")
_ADEMAMIX: Final = ("beta1", "beta2", "beta3", "alpha", "eps", "t_alpha", "t_beta3")
_BNB_RMSPROP: Final = ("alpha", "eps", "momentum", "centered")

# Optimizer → names that `optim_args` may give for it; those not listed take none.
OPTIMIZER_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "adamw_torch_4bit": _LOW_BIT,
    "adamw_torch_8bit": _LOW_BIT,
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov"),
    "adagrad": ("lr_decay", "weight_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "weight_decay", "centered"),
    "ademamix": _ADEMAMIX,
    "ademamix_8bit": _ADEMAMIX,
    "paged_ademamix_32bit": _ADEMAMIX,
    "paged_ademamix_8bit": _ADEMAMIX,
    "rmsprop_bnb": _BNB_RMSPROP,
    "rmsprop_bnb_32bit": _BNB_RMSPROP,
    "rmsprop_bnb_8bit": _BNB_RMSPROP,
}

_MIN_LR: Final = ("num_cycles", "min_lr", "min_lr_rate")

# Schedule → names that `lr_scheduler_kwargs` may give for it; those not listed take none.
SCHEDULE_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "cosine": ("num_cycles",),
    "cosine_with_restarts": ("num_cycles",),
    "polynomial": ("lr_end", "power"),
    "inverse_sqrt": ("timescale",),
    "reduce_lr_on_plateau": (
        "mode",
        "factor",
        "patience",
        "threshold",
        "threshold_mode",
        "cooldown",
        "min_lr",
        "eps",
    ),
    "cosine_with_min_lr": _MIN_LR,
    "cosine_warmup_with_min_lr": (*_MIN_LR, "warmup_lr_rate"),
    "warmup_stable_decay": (
        "num_decay_steps",
        "num_stable_steps",
        "warmup_type",
        "decay_type",
        "min_lr_ratio",
        "num_cycles",
    ),
    "greedy": (
        "mode",
        "factor",
        "patience",
        "threshold",
        "threshold_mode",
        "cooldown",
        "warmup",
        "min_lr",
        "max_lr",
        "eps",
        "smooth",
        "window_size",
        "reset_start",
    ),
}

# Schedules that follow a metric of the evaluations instead of the steps.
BY_METRIC: Final = frozenset({"reduce_lr_on_plateau", "greedy"})

_OF_TORCHAO: Final = frozenset({"adamw_torch_4bit", "adamw_torch_8bit"})
_OF_TORCH: Final = frozenset(
    {"adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"}
)
"""Or of transformers."""


def package_of(optimizer: Optimizer) -> Literal["bitsandbytes", "torchao"] | None:
    """The package that has the optimizer, if it is one that a worker may lack."""
    if optimizer in _OF_TORCH:
        return None
    return "torchao" if optimizer in _OF_TORCHAO else "bitsandbytes"


def parse_optim_args(text: str | None) -> dict[str, str]:
    """`momentum=0.9, nesterov=true` as names and values. ValueError for another form."""
    parsed = {}
    for pair in (text or "").replace(" ", "").split(","):
        name, equals, value = pair.partition("=")
        if pair and not (name and equals and value):
            raise ValueError(f"`optim_args` must be `name=value, …`, and has `{pair}`")
        if pair:
            parsed[name] = value
    return parsed
