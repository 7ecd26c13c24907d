"""A model's weights in a checkpoint: all of them, or only those that train beside frozen ones."""

import hashlib
import os
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, load_model, save_file, save_model

_BLOCK: Final = 4096
_BLOCKS: Final = 256


def tensors(model: torch.nn.Module, *, trained_only: bool) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of `model`, by name: its own tensors, detached."""
    return _trained(model) if trained_only else model.state_dict()


def save(held: dict[str, torch.Tensor], file: Path, *, trained_only: bool) -> None:
    """Write what `tensors` gave, or a copy of it in which what was shared still is."""
    if trained_only:
        save_file({name: each.contiguous() for name, each in held.items()}, file)
    else:
        model: Any = _Holder(held)
        save_model(model, str(file))


class _Holder:
    """All that safetensors asks of a model: it finds shared weights in its state."""

    def __init__(self, held: dict[str, torch.Tensor]) -> None:
        self._held = held

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._held)


def load(model: torch.nn.Module, file: Path, *, trained_only: bool) -> None:
    """What `save` wrote, into a model of the same shape. ValueError, RuntimeError if it is not."""
    device = str(next(each.device for each in model.parameters() if not each.is_meta))
    if not trained_only:
        load_model(model, file, device=device)
        return
    saved, own = load_file(file, device=device), _trained(model)
    if _shapes(saved) != _shapes(own):
        raise ValueError("it holds other weights than those that this job trains")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(saved[name])


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters that train, and the buffers that a state would hold, by name."""
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    buffers = {
        f"{prefix}.{name}".lstrip("."): buffer
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }
    return {name: each.detach() for name, each in {**trained, **buffers}.items()}


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (each.shape, each.dtype) for name, each in tensors.items()}


def identity(folder: Path) -> str:
    """sha256 that tells a base model's safetensors in `folder` from others.

    Of their sizes and of blocks spread over each, so that it takes no time: what was trained or
    converted anew differs everywhere.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("model*.safetensors")):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.name} {size}\n".encode())
            for number in range(_BLOCKS):
                file.seek(size * number // _BLOCKS)
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()
