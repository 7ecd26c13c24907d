"""Which modules of a model FSDP shards separately: each is gathered and freed on its own.

Never the head over a vocabulary: the loss, which is computed a few tokens at a time, uses its
weight outside its forward pass.
"""

from collections.abc import Iterator
from typing import Any

import torch

from service.contract.spec.fsdp import FSDPSpec
from worker.failures import invalid_option

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)


def blocks(model: Any, options: FSDPSpec) -> list[torch.nn.Module]:
    """Inner modules before outer ones, without `model` itself. StageError(invalid_option) if the
    options do not fit the model."""
    if options.auto_wrap_policy == "no_wrap":
        return []
    if options.auto_wrap_policy == "size_based_wrap":
        return list(_large(model, options.least_params))
    return _of_classes(model, options.transformer_layer_cls_to_wrap)


def _of_classes(model: Any, named: list[str] | None) -> list[torch.nn.Module]:
    option = "resources.strategy.transformer_layer_cls_to_wrap"
    names = set(named or _own_blocks(model))
    inside = [module for _, module in model.named_modules() if module is not model]
    found = [module for module in inside if type(module).__name__ in names]
    unknown = names - {type(module).__name__ for module in found}
    if not found or (named and unknown):
        given = f"names {', '.join(sorted(unknown))}, but" if named else "has to be given:"
        classes = ", ".join(sorted({type(module).__name__ for module in model.modules()}))
        raise invalid_option(option, f"{given} the model has modules of {classes}")
    sharing = {type(module).__name__ for module in found if _shares(model, module)}
    if named and sharing:
        raise invalid_option(
            option,
            f"names {', '.join(sorted(sharing))}, whose weights are also used outside of them "
            "and cannot be sharded separately",
        )
    return [module for module in found if type(module).__name__ not in sharing][::-1]


def _own_blocks(model: Any) -> list[str]:
    """The classes that the model's type names, else those in its largest list of modules."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    named = list(getattr(base, "_no_split_modules", None) or ())
    lists = [each for each in base.modules() if isinstance(each, torch.nn.ModuleList)]
    if named or not lists:
        return named
    largest = max(lists, key=lambda each: sum(value.numel() for value in each.parameters()))
    return [type(module).__name__ for module in largest]


def _large(model: Any, least: int) -> Iterator[torch.nn.Module]:
    """As torch's size-based policy: modules with `least` weights that no inner module has."""
    taken: set[int] = set()
    for module in [module for module in model.modules() if module is not model][::-1]:
        left = [each for each in module.parameters() if id(each) not in taken]
        if isinstance(module, _CONTAINERS) or sum(each.numel() for each in left) < least:
            continue
        if not _shares(model, module):
            taken.update(map(id, left))
            yield module


def _shares(model: Any, module: torch.nn.Module) -> bool:
    """Whether a weight of `module` also belongs to, or is used by, another module outside it."""
    own = {id(each) for each in module.parameters()}
    inside = {id(each) for each in module.modules()}
    if id(model.get_output_embeddings()) in inside:
        return True
    return any(
        id(value) in own
        for other in model.modules()
        if id(other) not in inside
        for value in other.parameters(recurse=False)
    )
