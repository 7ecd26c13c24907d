"""Copies of tensors in CPU memory, which later training steps do not change."""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

T = TypeVar("T")


class HostBuffers:
    """Memory for one copy at a time. The next copy reuses it, so that no new pages are needed."""

    def __init__(self) -> None:
        self._held: list[torch.Tensor] = []

    def missing_bytes(self, value: Any) -> int:
        """About how many bytes a copy of `value` needs in addition to the memory already held."""
        whole = {_key(each): each.untyped_storage() for each in _plain_tensors(value)}
        needed = sum(_room(each.nbytes(), pinned=_is_to_pin(each)) for each in whole.values())
        return needed - sum(_room(each.nbytes, pinned=each.is_pinned()) for each in self._held)

    def copied(self, value: T) -> T:
        """A copy of `value` with its tensors in CPU memory, pinned if they come from a GPU. It
        overwrites the previous copy.

        Whole storages are copied, so that strides and shared memory stay the same, and files
        written from the copy have the same bytes.
        """
        copying = _Copying(self._held)
        memo: dict[int, Any] = {id(each): copying.copied(each) for each in _tensors(value)}
        self._held = copying.used
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return copy.deepcopy(value, memo)


class _Copying:
    """One copy; `used` is the memory that it is in."""

    def __init__(self, held: list[torch.Tensor]) -> None:
        self.used: list[torch.Tensor] = []
        self._free: dict[tuple[int, bool], list[torch.Tensor]] = defaultdict(list)
        for buffer in held:
            self._free[buffer.nbytes, buffer.is_pinned()].append(buffer)
        self._storages: dict[tuple[int, int], torch.UntypedStorage] = {}

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_traceable_wrapper_subclass(tensor):  # in the states of torchao's optimizers
            inner = {name: self.copied(each) for name, each in _inner(tensor).items()}
            context = tensor.__tensor_flatten__()[1]
            size, stride = tensor.size(), tensor.stride()
            return type(tensor).__tensor_unflatten__(inner, context, size, stride)
        key = _key(tensor)
        if key not in self._storages:
            self._storages[key] = self._copied_storage(tensor.untyped_storage())
        made = torch.empty(0, dtype=tensor.dtype).set_(
            self._storages[key], tensor.storage_offset(), tensor.size(), tensor.stride()
        )
        made.__dict__.update(tensor.__dict__)  # bitsandbytes marks paged tensors with attributes
        return made

    def _copied_storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        size, pinned = storage.nbytes(), _is_to_pin(storage)
        free = self._free[size, pinned]
        buffer = free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        buffer.copy_(source, non_blocking=pinned)
        self.used.append(buffer)
        return buffer.untyped_storage()


def _key(tensor: torch.Tensor) -> tuple[int, int]:
    """Identifies a tensor's storage by its address and size."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _is_to_pin(storage: torch.UntypedStorage) -> bool:
    """Copies from a GPU are pinned, to avoid an intermediate copy."""
    return storage.device.type == "cuda"


def _room(size: int, *, pinned: bool) -> int:
    """Bytes that a buffer of `size` really takes: torch rounds pinned memory up to the next power
    of two."""
    return 1 << (size - 1).bit_length() if pinned and size else size


def _inner(tensor: Any) -> dict[str, torch.Tensor]:
    return {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    for each in _tensors(value):
        if is_traceable_wrapper_subclass(each):
            yield from _plain_tensors(_inner(each))
        else:
            yield each
