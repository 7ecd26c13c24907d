"""The processes of one training, and how they agree on plain numbers.

What they say to each other here goes over the host's network (gloo) and never waits for a device.
Every call is made by all of them, in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from accelerate import Accelerator

T = TypeVar("T")

# One process may write a large file while the others wait for it; one that dies is noticed at
# once, because its connections end, and one that hangs is its supervisor's business.
_PATIENCE: Final = timedelta(days=30)


@dataclass(frozen=True)
class Ranks:
    """`number` of `count` processes; one alone needs no group."""

    number: int = 0
    count: int = 1
    group: Any = None

    @classmethod
    def of(cls, accelerator: Accelerator) -> "Ranks":
        if accelerator.num_processes == 1:
            return cls()
        group = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)
        return cls(accelerator.process_index, accelerator.num_processes, group)

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def share(self, batch: Sequence[T]) -> list[T]:
        """This process's part of a batch; the parts' sizes differ by one at most, and may be 0."""
        return list(batch[self.number :: self.count])

    def sums(self, *values: int) -> list[int]:
        """Each value's sum over the processes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.int64)
        torch.distributed.all_reduce(total, group=self.group)
        return [int(value) for value in total]

    def gathered(self, value: T) -> list[T]:
        """Everyone's value, in the order of the processes, for all of them."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value, group=self.group)
        return values

    def from_first(self, value: T) -> T:
        """The first process's value; that of the others is thrown away."""
        if self.count == 1:
            return value
        values: list[Any] = [value if self.is_first else None]
        torch.distributed.broadcast_object_list(values, src=0, group=self.group)
        first: T = values[0]
        return first

    def wait(self) -> None:
        """Until all have come here."""
        if self.count > 1:
            torch.distributed.barrier(group=self.group)
