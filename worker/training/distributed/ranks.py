"""The processes of one training, and how they agree on plain numbers.

Messages go over the host's network (gloo) and never wait for a device. All processes must make the
same calls in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from accelerate import Accelerator

T = TypeVar("T")

# One process may write a large file while the others wait. A process that dies is noticed at once,
# because its connections close, and the supervisor detects one that hangs.
_PATIENCE: Final = timedelta(days=30)


@dataclass(frozen=True)
class Ranks:
    """This process's rank; a single process needs no group."""

    rank: int = 0
    world_size: int = 1
    group: Any = None

    @classmethod
    def from_accelerator(cls, accelerator: Accelerator) -> "Ranks":
        if accelerator.num_processes == 1:
            return cls()
        group = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)
        return cls(accelerator.process_index, accelerator.num_processes, group)

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    def shard(self, batch: Sequence[T]) -> list[T]:
        """This process's shard of a batch; the sizes differ by at most 1, and may be 0."""
        return list(batch[self.rank :: self.world_size])

    def all_reduce_sum(self, *values: int) -> list[int]:
        """Sum of each value over the processes."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.int64)
        torch.distributed.all_reduce(total, group=self.group)
        return [int(value) for value in total]

    def sum_tensors(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over the processes, on the device of `value`; unlike all else here, it waits for
        that if there are several."""
        if self.world_size == 1:
            return value
        total = value.detach().to("cpu", copy=True)  # it is summed in place
        torch.distributed.all_reduce(total, group=self.group)
        return total.to(value.device)

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks, for each of them."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(values, value, group=self.group)
        return values

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value of the process of rank `source`, for all processes."""
        if self.world_size == 1:
            return value
        values: list[Any] = [value if self.rank == source else None]
        torch.distributed.broadcast_object_list(values, src=source, group=self.group)
        first: T = values[0]
        return first

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        if self.world_size > 1:
            torch.distributed.barrier(group=self.group)
