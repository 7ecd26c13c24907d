"""The weighted fair queue between projects: in which order free workers take waiting jobs.

Start-time fair queueing. Each project has a virtual time in each pool of workers: the seconds that
it has used there (of GPUs, or of workers without one), divided by its weight. The project with the
smallest one is next. A running attempt counts as what it has taken so far, but at least as the
project's attempts usually take: otherwise one project would get all GPUs that become free at once.
Priorities order the jobs of one project only. Nothing here reads or writes the database: see
fair_shares.py.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeVar

FIRST_HOLD_SECONDS: Final = 600.0
UNKNOWN_SECONDS: Final = 60.0
"""What an attempt is expected to take of a project that has finished none."""
LONGEST_CREDIT_SECONDS: Final = 8 * 86400.0
"""How far a project may fall behind: eight GPUs for a day. A job that no worker can run would
otherwise collect a credit that keeps all others out later."""
_NEWEST_COUNTS: Final = 0.2

Taken = TypeVar("Taken")


class Pool(StrEnum):
    """The workers that a share refers to."""

    GPU = "gpu"
    CPU = "cpu"


def pool_of(gpus: int) -> Pool:
    return Pool.GPU if gpus else Pool.CPU


@dataclass(frozen=True)
class Waiting:
    """A job that can be claimed with this many GPUs."""

    job_id: str
    project: str
    queue: str
    gpus: int
    priority: int
    queued_at: datetime
    waited_seconds: float
    owed_seconds: float = 0.0
    """GPU seconds that its project would need to draw level with the next one."""

    @property
    def holds_back(self) -> bool:
        """Whether later jobs must leave free GPUs to this one, although it needs more than are
        free: for the times that `holds_back` says, and while other projects have been preferred
        to its own for as much as ten minutes of what it needs."""
        is_owed = self.owed_seconds > self.gpus * FIRST_HOLD_SECONDS
        return is_owed or holds_back(self.waited_seconds)


@dataclass(frozen=True)
class Running:
    """An attempt that has not ended."""

    gpus: int
    seconds: float

    @property
    def units(self) -> int:
        """GPUs; an attempt without one takes a worker."""
        return max(1, self.gpus)


@dataclass(frozen=True)
class Share:
    """What a project has had of a pool."""

    project: str
    weight: float = 1.0
    virtual_seconds: float = 0.0
    """Of ended attempts."""
    mean_seconds: float = UNKNOWN_SECONDS
    """Of its latest attempts."""
    running: tuple[Running, ...] = ()
    max_gpus: int | None = None
    is_new: bool = False
    """It has never had anything; among equals it comes first, or it would stay level for ever."""

    @property
    def expected(self) -> float:
        """The virtual time with what runs now."""
        taken = sum(one.units * max(one.seconds, self.mean_seconds) for one in self.running)
        return self.virtual_seconds + taken / self.weight

    @property
    def gpus_in_use(self) -> int:
        return sum(one.gpus for one in self.running)

    def allows(self, gpus: int) -> bool:
        """Whether this many GPUs more are within the project's quota."""
        return self.max_gpus is None or self.gpus_in_use + gpus <= self.max_gpus

    def charged(self, gpus: int, seconds: float) -> "Share":
        """The share after an attempt that has ended."""
        mean = self.mean_seconds + _NEWEST_COUNTS * (seconds - self.mean_seconds)
        used = max(1, gpus) * seconds / self.weight
        return replace(self, virtual_seconds=self.virtual_seconds + used, mean_seconds=mean)


def in_order(waiting: Iterable[Waiting], shares: Mapping[str, Share]) -> list[Waiting]:
    """The jobs in the order in which they should start, without those that are over a quota.

    `shares` has one of each project of `waiting`.
    """
    by_project: dict[str, list[Waiting]] = defaultdict(list)
    for job in waiting:
        by_project[job.project].append(job)
    if not by_project:
        return []
    turns = []
    for project, jobs in by_project.items():
        jobs.sort(key=lambda job: (job.priority, job.queued_at, job.job_id))
        first = min(job.queued_at for job in jobs)
        share = shares[project]
        turns.append((share.expected, not share.is_new, first, project))
    turns.sort()
    ordered = []
    for (used, _, _, project), following in zip(turns, [*turns[1:], turns[-1]], strict=True):
        owed = (following[0] - used) * shares[project].weight
        allowed = _within_quota(by_project[project], shares[project])
        ordered += [replace(job, owed_seconds=owed) for job in allowed]
    return ordered


def _within_quota(jobs: Sequence[Waiting], share: Share) -> list[Waiting]:
    """A job for which too little of the quota is left holds back the project's later ones, as one
    for which too few GPUs are free; not one that needs more than the whole quota."""
    allowed = []
    for job in jobs:
        if share.allows(job.gpus):
            allowed.append(job)
        elif job.gpus <= (share.max_gpus or 0) and holds_back(job.waited_seconds):
            break
    return allowed


def first_fitting(
    waiting: Iterable[Waiting], acquire: Callable[[int], Taken | None]
) -> tuple[Waiting, Taken] | None:
    """The first job that enough GPUs are free for, unless an earlier one holds it back."""
    for job in waiting:
        taken = acquire(job.gpus)
        if taken is not None:
            return job, taken
        if job.holds_back:
            return None
    return None


def holds_back(waited_seconds: float) -> bool:
    """Whether later jobs must leave free GPUs to a job that needs more than are free.

    Alternates in periods that double: yes for the first ten minutes, no for the next twenty, yes
    for the next forty, and so on. So a stream of small jobs cannot keep a large one out for ever,
    and no GPU idles for days because the large one needs another.
    """
    return int(math.log2(1 + max(0.0, waited_seconds) / FIRST_HOLD_SECONDS)) % 2 == 0


def lowest(active: Iterable[Share]) -> float:
    """The virtual time at which a project without jobs so far begins: it gets no credit for that
    time."""
    return min((share.expected for share in active), default=0.0)


def lifted(shares: Iterable[Share], active: set[str]) -> list[Share]:
    """Those of `shares` that have fallen behind without a right to it, where they are to be now:
    projects without jobs (not in `active`), and those behind by more than the longest credit."""
    known = list(shares)
    busy = [share for share in known if share.project in active]
    if not busy:
        return []
    least = lowest(busy)
    oldest_credit = max(share.expected for share in busy) - LONGEST_CREDIT_SECONDS
    moved = []
    for share in known:
        limit = oldest_credit if share.project in active else max(least, oldest_credit)
        if share.virtual_seconds < limit:
            moved.append(replace(share, virtual_seconds=limit))
    return moved
