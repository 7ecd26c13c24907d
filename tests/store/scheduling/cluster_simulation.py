"""A cluster in memory whose hosts choose their jobs with the service's own code."""

import heapq
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from service.contract.routing import gpu_queue
from service.store.scheduling import fair_queue
from service.store.scheduling.fair_queue import Running, Share, Waiting

LONGEST_ATTEMPT = 4 * 3600.0
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Job:
    id: str
    project: str
    gpus: int
    seconds: float
    """Of training that is left."""
    priority: int
    arrives: float
    """Again after each interruption."""
    waited: float = 0.0
    """The longest wait for a start."""

    @property
    def queue(self) -> str:
        return gpu_queue(self.gpus)

    @property
    def place(self) -> tuple[int, float, str]:
        return (self.priority, self.arrives, self.id)


@dataclass(order=True)
class Attempt:
    ends: float
    job_id: str
    job: Job = field(compare=False)
    host: int = field(compare=False)
    begins: float = field(compare=False)


class Cluster:
    """Hosts with so many GPUs each; attempts are interrupted (paused, preempted, lost) after a time
    that `interrupted` draws, and the job waits again with what is left."""

    def __init__(
        self, hosts: list[int], shares: list[Share], jobs: list[Job], chance: random.Random
    ) -> None:
        self.now = 0.0
        self.used: dict[str, float] = defaultdict(float)
        """GPU seconds of ended attempts, by project."""
        self.longest_pause: dict[str, float] = defaultdict(float)
        """The longest time in which a project with waiting jobs started none, by project."""
        self._idle_since: dict[str, float] = {}
        self._hosts = hosts
        self._free = list(hosts)
        self._shares = {share.project: share for share in shares}
        self._arriving = sorted(jobs, key=lambda job: job.arrives, reverse=True)
        self._waiting: dict[tuple[str, str], list[tuple[tuple[int, float, str], Job]]] = (
            defaultdict(list)
        )
        self._running: list[Attempt] = []
        self._chance = chance

    def add(self, share: Share, jobs: list[Job]) -> None:
        self._shares[share.project] = share
        self._arriving = sorted([*self._arriving, *jobs], key=lambda job: job.arrives, reverse=True)

    def backlogged(self) -> set[str]:
        return {project for (project, _), jobs in self._waiting.items() if jobs}

    def run(self) -> Iterator[None]:
        """Until no job is left; yields after each event."""
        while self._arriving or self._running or self.backlogged():
            self._advance()
            for host in range(len(self._hosts)):
                while self._free[host] and self._start_one(host):
                    pass
            self._note_pauses()
            yield

    def in_use(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for attempt in self._running:
            found[attempt.job.project] += attempt.job.gpus
        return found

    def used_so_far(self) -> dict[str, float]:
        used = defaultdict(float, self.used)
        for attempt in self._running:
            used[attempt.job.project] += attempt.job.gpus * (self.now - attempt.begins)
        return used

    def _advance(self) -> None:
        """To the next arrival or end, or by a poll of the scheduler while something waits."""
        times = [self.now + 120.0] if self.backlogged() else []
        times += [self._arriving[-1].arrives] if self._arriving else []
        times += [self._running[0].ends] if self._running else []
        self.now = max(self.now, min(times))
        while self._arriving and self._arriving[-1].arrives <= self.now:
            self._wait(self._arriving.pop())
        while self._running and self._running[0].ends <= self.now:
            self._end(heapq.heappop(self._running))

    def _note_pauses(self) -> None:
        waiting = self.backlogged()
        for project in self._shares:
            since = self._idle_since.setdefault(project, self.now)
            if project in waiting:
                self.longest_pause[project] = max(self.longest_pause[project], self.now - since)
            else:
                self._idle_since[project] = self.now

    def _wait(self, job: Job) -> None:
        heapq.heappush(self._waiting[job.project, job.queue], (job.place, job))

    def _end(self, attempt: Attempt) -> None:
        job, seconds = attempt.job, attempt.ends - attempt.begins
        self._free[attempt.host] += job.gpus
        self.used[job.project] += job.gpus * seconds
        job.seconds -= seconds
        if job.seconds > 1e-6:
            job.arrives = self.now
            self._wait(job)
        self._shares[job.project] = self._shares[job.project].charged(job.gpus, seconds)
        active = self.backlogged() | set(self.in_use())
        for share in fair_queue.lifted(self._with_running().values(), active):
            self._shares[share.project] = replace(share, running=())

    def _with_running(self) -> dict[str, Share]:
        running: dict[str, list[Running]] = defaultdict(list)
        for attempt in self._running:
            running[attempt.job.project].append(
                Running(attempt.job.gpus, self.now - attempt.begins)
            )
        return {
            project: replace(share, running=tuple(running[project]))
            for project, share in self._shares.items()
        }

    def _start_one(self, host: int) -> bool:
        size = self._hosts[host]
        firsts = [jobs[0][1] for jobs in self._waiting.values() if jobs]
        waiting = [self._as_waiting(job) for job in firsts if job.gpus <= size]
        if not waiting:
            return False
        ordered = fair_queue.in_order(waiting, self._with_running())
        found = fair_queue.first_fitting(
            ordered, lambda gpus: True if gpus <= self._free[host] else None
        )
        if found is None:
            return False
        _, job = heapq.heappop(self._waiting[found[0].project, found[0].queue])
        self._free[host] -= job.gpus
        job.waited = max(job.waited, self.now - job.arrives)
        lasts = job.seconds
        if self._chance.random() < 0.1:
            lasts *= self._chance.random()
        heapq.heappush(self._running, Attempt(self.now + lasts, job.id, job, host, self.now))
        self._idle_since[job.project] = self.now
        return True

    def _as_waiting(self, job: Job) -> Waiting:
        at = _BEGIN + timedelta(seconds=job.arrives)
        waited = self.now - job.arrives
        return Waiting(job.id, job.project, job.queue, job.gpus, job.priority, at, waited)


def make_jobs(
    project: str, work: float, chance: random.Random, *, arrive_within: float, gpus: list[int]
) -> list[Job]:
    """Jobs of so many GPU seconds together, of very different lengths."""
    jobs: list[Job] = []
    while work > 0:
        count = chance.choice(gpus)
        seconds = min(chance.lognormvariate(6.5, 1.0), LONGEST_ATTEMPT)
        arrives = chance.random() * arrive_within if chance.random() < 0.7 else 0.0
        name = f"{project}-{len(jobs):05}"
        jobs.append(Job(name, project, count, seconds, chance.randrange(10), arrives))
        work -= count * seconds
    return jobs
