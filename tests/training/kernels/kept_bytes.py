"""What a forward pass keeps for the backward pass."""

from collections.abc import Callable

import torch


def kept_bytes(model: torch.nn.Module, run: Callable[[], object]) -> int:
    """Bytes of all tensors that autograd keeps while `run` runs, each once, without the weights of
    `model`."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    return sum(storage.nbytes() for place, storage in kept.items() if place not in weights)
