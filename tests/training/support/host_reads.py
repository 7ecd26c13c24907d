"""Finds what would wait for a GPU, on a machine without one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# What a device's numbers must be known for on the host: a value, or the size of the outcome.
_READS: Final = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
_INDEXED: Final = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# On a CPU they copy nothing, and no operation of torch is called.
_METHODS: Final = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu}


class HostReadError(AssertionError):
    pass


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func in _INDEXED and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        if func in _READS or by_mask:
            raise HostReadError(func)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METHODS:
            raise HostReadError(func)
        return func(*args, **(kwargs or {}))


class HostReads:
    """Forbids them inside `forbidden`, but for what is `allowed` there again."""

    def __init__(self) -> None:
        self.calls = 0

    @contextmanager
    def forbidden(self) -> Iterator[None]:
        with _Methods(), _Operations():
            yield

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            with self.forbidden():
                return function(*arguments, **named)

        return watched


class HostReadsOnGPU(HostReads):
    """What torch itself finds where there is a GPU."""

    @contextmanager
    def forbidden(self) -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
