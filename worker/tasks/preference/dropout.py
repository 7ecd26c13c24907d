"""Switching off what makes two forward passes of a model differ while it is trained."""

import copy
import inspect
from typing import Any, Final

import torch
from transformers import PreTrainedConfig

from service.contract.failures import FailureCode, StageError
from worker.training.kernels.equivalence_probe import PROBE_ERRORS, probing, small_batch

_NOISE: Final = ("drop", "jitter")
"""In the names of numbers: probabilities of dropout, and noise on the input of routers."""
_TOLERANCE: Final = {torch.float32: 1e-4}
_COARSE: Final = 1e-2
"""Of the outputs' standard deviation: a GPU may add up in another order each time."""


def disable_dropout(model: torch.nn.Module) -> None:
    """The model is compared with a reference, which has none, or an answer with another. Some
    models have modules for it, others numbers, as Llama's `attention_dropout` and OPT's `dropout`
    and `layerdrop`, or read their configuration in each pass, as Falcon and Persimmon. The model's
    own configuration, which is saved, keeps its values. An adapter's own dropout is added later and
    stays.

    StageError(unsupported_architecture) if the model still gives other numbers each time.
    """
    silent: dict[int, PreTrainedConfig] = {}
    module: Any
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        _silence(module)
        config = vars(module).get("config")
        if module is not model and isinstance(config, PreTrainedConfig):
            if id(config) not in silent:
                silent[id(config)] = _silent(config)
            module.config = silent[id(config)]
    _require_same_twice(model)


def _silence(owner: object) -> None:
    for name, value in vars(owner).items():
        if isinstance(value, float) and any(part in name for part in _NOISE):
            setattr(owner, name, 0.0)


def _silent(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy without dropout."""
    copied = copy.deepcopy(config)
    parts = [copied]
    while parts:
        part = parts.pop()
        _silence(part)
        parts += [each for each in vars(part).values() if isinstance(each, PreTrainedConfig)]
    return copied


@torch.no_grad()
def _require_same_twice(model: Any) -> None:
    """Models that cannot run on tokens alone are not tried."""
    caches = "use_cache" in inspect.signature(model.forward).parameters
    options = {"use_cache": False} if caches else {}
    with probing(model):
        model.train()
        batch = small_batch(model)
        try:
            one, other = (model(**batch, **options).logits.float() for _ in range(2))
        except PROBE_ERRORS:
            return
    allowed = _TOLERANCE.get(model.dtype, _COARSE) * one.std()
    if not bool((one - other).abs().max() <= allowed):
        raise StageError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"Models of type {model.config.model_type!r} compute with random numbers while they "
            "are trained, and these cannot be switched off: answers cannot be compared. Choose "
            "another base model",
            model_type=model.config.model_type,
        )
