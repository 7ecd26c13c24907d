"""Full copies of a model that is sharded or offloaded, for saving and loading it."""

import copy
from collections.abc import Mapping
from typing import Any

import torch


def with_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> Any:
    """A copy of `model` with `weights` by name; its other weights are on the meta device."""
    replaced: dict[int, Any] = {}
    for name, old in model.named_parameters():
        value = weights.get(name)
        new = torch.empty_like(old, device="meta") if value is None else value
        replaced[id(old)] = torch.nn.Parameter(new, old.requires_grad)
    # By identity, so that shared weights stay shared.
    return copy.deepcopy(model, replaced)


def filled(shape: torch.nn.Module, weights: Mapping[str, torch.Tensor], buffers: Any) -> Any:
    """A copy of `shape` with `weights`, and with the current buffers of the model `buffers`."""
    copied = with_weights(shape, weights)
    with torch.no_grad():
        for name, buffer in buffers.named_buffers():
            copied.get_buffer(name).copy_(buffer)
    return copied
