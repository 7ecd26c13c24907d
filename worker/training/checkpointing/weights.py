"""A model's weights in a checkpoint: all of them, or only the trained ones if others are frozen."""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from safetensors.torch import load_file, load_model, save_file, save_model

_BLOCK: Final = 4096
_BLOCKS: Final = 256


def tensors(model: torch.nn.Module, *, trained_only: bool) -> dict[str, torch.Tensor]:
    """The tensors of `model` that a checkpoint holds, by name; detached, but not copied."""
    return _trained(model) if trained_only else model.state_dict()


def save(held: dict[str, torch.Tensor], file: Path, *, trained_only: bool) -> None:
    """Write the result of `tensors`, or a copy of it that keeps shared memory shared."""
    if trained_only:
        save_file({name: each.contiguous() for name, each in held.items()}, file)
    else:
        # The part of a model that safetensors uses: it finds tied weights in its state.
        model: Any = SimpleNamespace(state_dict=lambda: dict(held))
        save_model(model, str(file))


def load(model: torch.nn.Module, file: Path, *, trained_only: bool) -> None:
    """Load a file of `save` into a model of the same shape. ValueError or RuntimeError if it does
    not fit."""
    device = str(next(each.device for each in model.parameters() if not each.is_meta))
    if not trained_only:
        load_model(model, file, device=device)
        return
    saved, own = load_file(file, device=device), _trained(model)
    if _shapes(saved) != _shapes(own):
        raise ValueError("its weights are not those that this job trains")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(saved[name])


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Trained parameters and persistent buffers, by name."""
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
    """sha256 that identifies a base model by its safetensors in `folder`.

    It covers the sizes, and blocks spread over each file, which is fast and enough: weights that
    were trained or converted again differ everywhere.
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
