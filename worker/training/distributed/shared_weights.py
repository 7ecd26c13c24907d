"""Loading weights once for all processes of a machine, which then map the same memory.

A model that is loaded in another dtype than its files, such as float32 from bfloat16, is a copy in
memory: each of eight processes would hold all of it before its shard goes to its GPU. Here the
first process of each machine loads the model, and the others there map its weights from its memory.
A page is copied only for a process that writes to it.
"""

import io
import logging
import mmap
import os
import pickle
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import torch

from worker.training.distributed.ranks import Ranks

T = TypeVar("T")

log = logging.getLogger(__name__)

_UNSHARED: Final = (OSError, pickle.PicklingError, AttributeError, TypeError)
"""What pickle raises for objects that cannot leave their process, and the system if it does not
support such memory."""
_TOKEN_BYTES: Final = 16
"""Random ones at the start of the memory: another file may be open under the same number."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_IDS: Final = Path("/proc/self/ns/pid")


class _Place(NamedTuple):
    """Where a parameter is in the shared memory; `offset` in bytes."""

    offset: int
    dtype: torch.dtype
    shape: torch.Size


class _Shared(NamedTuple):
    """What the other processes need in order to map the memory."""

    pid: int
    descriptor: int
    token: bytes
    pickled: bytes
    random_state: torch.Tensor
    """torch's CPU state in that process after `read`."""


def read_once(read: Callable[[], T], ranks: Ranks) -> T:
    """What `read` returns in the first process of each machine, for all processes there. The
    parameters share memory, which is freed when no process uses any of them; all else is copied.

    All processes must call this. If memory cannot be shared, each process calls `read`. torch's
    random state begins in all processes as in the first of all, and continues so: wherever `read`
    is called, it draws the same weights.
    """
    if ranks.world_size == 1:
        return read()
    torch.set_rng_state(ranks.broadcast(torch.get_rng_state()))
    machines = ranks.all_gather(_machine())
    firsts = [machines.index(machine) for machine in machines]
    is_first = firsts[ranks.rank] == ranks.rank
    return _give(read(), ranks, firsts) if is_first else _take(read, ranks, firsts)


def _machine() -> tuple[str, int]:
    """The same in processes that can open each other's files by their process ids; of this process
    alone where that cannot be known."""
    try:
        return _BOOT.read_text(), _PROCESS_IDS.stat().st_ino
    except OSError:
        return secrets.token_hex(), 0


def _exchanged(shared: _Shared | None, ranks: Ranks, firsts: list[int]) -> _Shared | None:
    """What the first process of this machine has shared. `firsts`: for each process, that of its
    machine."""
    every = {first: ranks.broadcast(shared, first) for first in sorted(set(firsts))}
    return every[firsts[ranks.rank]]


def _give(value: T, ranks: Ranks, firsts: list[int]) -> T:
    shared = None
    try:
        shared = _shared(value)
    except _UNSHARED as error:
        log.warning("shared_weights.not_shared error=%s", error)
    _exchanged(shared, ranks, firsts)
    ranks.barrier()  # until the others have opened it
    if shared is not None:
        os.close(shared.descriptor)
    return value


def _take(read: Callable[[], T], ranks: Ranks, firsts: list[int]) -> T:
    shared = _exchanged(None, ranks, firsts)
    memory = None if shared is None else _opened(shared)
    ranks.barrier()
    if shared is None or memory is None:
        return read()
    value: T = _Unpickler(io.BytesIO(shared.pickled), memory).load()
    torch.set_rng_state(shared.random_state)
    return value


def _shared(value: Any) -> _Shared:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dump(value)
    token = os.urandom(_TOKEN_BYTES)
    descriptor = _moved(list(pickler.found.values()), token)
    return _Shared(os.getpid(), descriptor, token, buffer.getvalue(), torch.get_rng_state())


def _opened(shared: _Shared) -> mmap.mmap | None:
    """None if the file cannot be opened, or is another one."""
    try:
        descriptor = os.open(f"/proc/{shared.pid}/fd/{shared.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0):  # closed at the end; the mapping stays
            memory = _private(descriptor)
    except (OSError, ValueError) as error:  # a pipe, or an empty file
        log.warning("shared_weights.not_mapped error=%s", error)
        return None
    if memory[:_TOKEN_BYTES] == shared.token:
        return memory
    log.warning("shared_weights.not_mapped error=%s", "another file has this descriptor")
    return None


def _moved(parameters: list[tuple[torch.nn.Parameter, _Place]], token: bytes) -> int:
    """Move the parameters to memory that others can open by the returned descriptor; one by one, so
    that only one exists twice at a time. It is not limited by the size of /dev/shm."""
    if sys.platform != "linux":
        raise OSError("sharing weights between processes needs Linux")
    descriptor = os.memfd_create("weights", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max((_end(place) for _, place in parameters), default=_TOKEN_BYTES))
    os.pwrite(descriptor, token, 0)
    common, own = mmap.mmap(descriptor, 0), _private(descriptor)
    for parameter, place in parameters:
        _tensor(common, place).copy_(parameter.detach())
        parameter.data = _tensor(own, place)
    return descriptor


def _private(descriptor: int) -> mmap.mmap:
    """A private mapping: a page that this process writes to is copied first."""
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE)


class _Pickler(pickle.Pickler):
    """Pickles a value without its parameters, which it finds places for."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.found: dict[int, tuple[torch.nn.Parameter, _Place]] = {}
        """By identity, so that tied weights have one place."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.nn.Parameter):
            return None
        if obj.device.type != "cpu":
            raise TypeError(f"a weight is on {obj.device}")
        known = self.found.get(id(obj))
        place = known[1] if known else self._next(obj)
        self.found[id(obj)] = obj, place
        # transformers sets attributes on weights that it has initialized.
        return place, obj.requires_grad, obj.__dict__

    def _next(self, parameter: torch.nn.Parameter) -> _Place:
        ends = [_end(place) for _, place in self.found.values()][-1:]
        page = mmap.PAGESIZE
        begin = -(-max(ends, default=_TOKEN_BYTES) // page) * page
        return _Place(begin, parameter.dtype, parameter.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: mmap.mmap) -> None:
        super().__init__(file)
        self._memory = memory
        self._found: dict[_Place, torch.nn.Parameter] = {}

    def persistent_load(self, pid: Any) -> Any:
        place, requires_grad, attributes = pid
        if place not in self._found:
            parameter = torch.nn.Parameter(_tensor(self._memory, place), requires_grad)
            parameter.__dict__.update(attributes)
            self._found[place] = parameter
        return self._found[place]


def _end(place: _Place) -> int:
    # At least one byte, so that no two weights begin at the same place.
    return place.offset + max(place.shape.numel() * place.dtype.itemsize, 1)


def _tensor(memory: mmap.mmap, place: _Place) -> torch.Tensor:
    """The tensor keeps `memory` mapped."""
    if place.shape.numel() == 0:
        return torch.empty(place.shape, dtype=place.dtype)
    size = _end(place) - place.offset
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=place.offset)
    return flat.view(place.dtype).view(place.shape)
