"""Optimizers by their names in transformers: classes and arguments.

Arguments and defaults are Trainer's: betas, epsilon and weight decay are fields of the spec, all
others come from `optim_args`.
"""

import importlib
import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import Adafactor
from transformers.trainer_pt_utils import get_parameter_names

from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.choices import parse_optim_args
from worker.failures import invalid_option

# Names that transformers.Trainer excludes from weight decay, in addition to LayerNorm modules.
_NO_DECAY: Final = [
    r"bias",
    r"layernorm",
    r"rmsnorm",
    r"(?:^|\.)norm(?:$|\.)",
    r"_norm(?:$|\.)",
]

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """What an optimizer is built from."""

    model: torch.nn.Module
    groups: Groups
    spec: TrainingSpec
    arguments: dict[str, str]
    """From `optim_args`, as text."""
    device: torch.device

    @property
    def adam(self) -> dict[str, Any]:
        return {**self.betas, "eps": self.spec.adam_epsilon}

    @property
    def betas(self) -> dict[str, Any]:
        return {"betas": (self.spec.adam_beta1, self.spec.adam_beta2)}

    def floats(self, *names: str) -> dict[str, Any]:
        """Those of the named arguments that the job gives."""
        return {name: float(self.arguments[name]) for name in names if name in self.arguments}

    def ints(self, *names: str) -> dict[str, Any]:
        return {name: int(self.arguments[name]) for name in names if name in self.arguments}

    def flags(self, *names: str) -> dict[str, Any]:
        truths = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        return {
            name: truths[self.arguments[name].lower()] for name in names if name in self.arguments
        }


Builder = Callable[[Request], torch.optim.Optimizer]


def build(
    model: torch.nn.Module, spec: TrainingSpec, device: torch.device
) -> torch.optim.Optimizer:
    """The job's optimizer. StageError(invalid_option) if its package is missing, or an argument is
    invalid."""
    groups = parameter_groups(model, spec.weight_decay)
    request = Request(model, groups, spec, parse_optim_args(spec.optim_args), device)
    try:
        return REGISTRY[spec.optim](request)
    except (ValueError, KeyError) as error:
        given = f"`{spec.optim_args}`" if spec.optim_args else "not set"
        raise invalid_option(
            "training.optim_args", f"is {given}, and `{spec.optim}` cannot be built: {error}"
        ) from error


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> Groups:
    """Two groups: weights with decay, and biases and normalization weights without."""
    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], _NO_DECAY))
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    return [
        {"params": [v for n, v in named if n in decayed], "weight_decay": weight_decay},
        {"params": [v for n, v in named if n not in decayed], "weight_decay": 0.0},
    ]


def _adamw(request: Request) -> torch.optim.Optimizer:
    # The fused kernel works on CPU and CUDA. None, unlike False, lets torch choose another one.
    fused = True if request.spec.optim == "adamw_torch_fused" else None
    return torch.optim.AdamW(
        request.groups, lr=request.spec.learning_rate, fused=fused, **request.adam
    )


def _adafactor(request: Request) -> torch.optim.Optimizer:
    return Adafactor(
        request.groups, lr=request.spec.learning_rate, scale_parameter=False, relative_step=False
    )


def _torch(
    kind: Callable[..., torch.optim.Optimizer], *floats: str, flags: tuple[str, ...] = ()
) -> Builder:
    """`floats` and `flags`: the arguments that `optim_args` may give."""
    return lambda request: kind(
        request.groups,
        lr=request.spec.learning_rate,
        **request.floats(*floats),
        **request.flags(*flags),
    )


def _torchao(name: str) -> Builder:
    def build(request: Request) -> torch.optim.Optimizer:
        if request.device.type == "cpu" and shutil.which("c++") is None:
            raise invalid_option(
                "training.optim",
                f"is `{request.spec.optim}`, which needs a C++ compiler on a CPU",
            )
        made: torch.optim.Optimizer = getattr(_package("torchao.optim", request), name)(
            request.groups,
            lr=request.spec.learning_rate,
            **request.ints("block_size"),
            **request.flags("bf16_stochastic_round"),
            **request.adam,
        )
        return made

    return build


def _bitsandbytes(name: str, arguments: Callable[[Request], dict[str, Any]]) -> Builder:
    """8 or 32 bits, paged or not, by the option's name."""

    def build(request: Request) -> torch.optim.Optimizer:
        option = request.spec.optim
        if option.startswith("paged_") and request.device.type == "cpu":
            raise invalid_option(
                "training.optim", f"is `{option}`, which needs a GPU: a CPU has nothing to page to"
            )
        options: dict[str, Any] = {"optim_bits": 8 if "8bit" in option else 32}
        if "rmsprop" not in option:
            options["is_paged"] = option.startswith("paged_")
        package = _package("bitsandbytes.optim", request)
        made: torch.optim.Optimizer = getattr(package, name)(
            request.groups, lr=request.spec.learning_rate, **options, **arguments(request)
        )
        _keep_embeddings_in_32_bits(package.GlobalOptimManager.get_instance(), request)
        return made

    return build


def _keep_embeddings_in_32_bits(manager: Any, request: Request) -> None:
    """As bitsandbytes recommends and Trainer does: rows of an embedding rarely get a gradient, for
    which 8 bits are too coarse. Takes effect at the first step; a resumed state keeps its bits."""
    manager.initialize()  # it is global, and would apply the overrides of an earlier optimizer
    if "8bit" not in request.spec.optim:
        return
    for module in request.model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def _ademamix_arguments(request: Request) -> dict[str, Any]:
    given = request.floats("beta1", "beta2", "beta3")
    betas = (
        given.get("beta1", request.spec.adam_beta1),
        given.get("beta2", request.spec.adam_beta2),
        given.get("beta3", 0.9999),
    )
    arguments = {"eps": request.spec.adam_epsilon, **request.floats("alpha", "eps")}
    return {"betas": betas, **arguments, **request.ints("t_alpha", "t_beta3")}


def _package(module: str, request: Request) -> Any:
    name = module.partition(".")[0]
    if importlib.util.find_spec(name) is None:
        raise invalid_option(
            "training.optim",
            f"is `{request.spec.optim}`, which needs the package {name}, "
            "and this worker does not have it",
        )
    return importlib.import_module(module)


_BNB_ADAMW: Final = _bitsandbytes("AdamW", lambda request: request.adam)
_BNB_LION: Final = _bitsandbytes("Lion", lambda request: request.betas)
_BNB_ADEMAMIX: Final = _bitsandbytes("AdEMAMix", _ademamix_arguments)
_BNB_RMSPROP: Final = _bitsandbytes(
    "RMSprop",
    lambda request: request.floats("alpha", "eps", "momentum") | request.flags("centered"),
)

REGISTRY: Final[dict[str, Builder]] = {
    "adamw_torch": _adamw,
    "adamw_torch_fused": _adamw,
    "adamw_torch_4bit": _torchao("AdamW4bit"),
    "adamw_torch_8bit": _torchao("AdamW8bit"),
    "adafactor": _adafactor,
    "sgd": _torch(torch.optim.SGD, "momentum", "dampening", "weight_decay", flags=("nesterov",)),
    "adagrad": _torch(torch.optim.Adagrad, "lr_decay", "weight_decay", "eps"),
    "rmsprop": _torch(
        torch.optim.RMSprop, "momentum", "alpha", "eps", "weight_decay", flags=("centered",)
    ),
    "adamw_bnb_8bit": _BNB_ADAMW,
    "adamw_8bit": _BNB_ADAMW,
    "paged_adamw_32bit": _BNB_ADAMW,
    "paged_adamw_8bit": _BNB_ADAMW,
    "ademamix": _BNB_ADEMAMIX,
    "ademamix_8bit": _BNB_ADEMAMIX,
    "paged_ademamix_32bit": _BNB_ADEMAMIX,
    "paged_ademamix_8bit": _BNB_ADEMAMIX,
    "lion_32bit": _BNB_LION,
    "lion_8bit": _BNB_LION,
    "paged_lion_32bit": _BNB_LION,
    "paged_lion_8bit": _BNB_LION,
    "rmsprop_bnb": _BNB_RMSPROP,
    "rmsprop_bnb_32bit": _BNB_RMSPROP,
    "rmsprop_bnb_8bit": _BNB_RMSPROP,
}
