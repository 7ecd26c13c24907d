"""The weighted fair queue, by simulation: shares, waits, and what a single project sees."""

import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from service.store.scheduling import fair_queue
from service.store.scheduling.fair_queue import (
    LONGEST_CREDIT_SECONDS,
    Pool,
    Running,
    Share,
    Waiting,
)
from tests.store.scheduling.cluster_simulation import LONGEST_ATTEMPT, Cluster, Job, make_jobs

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WEIGHTS = {"search": 4.0, "ads": 3.0, "maps": 2.0, "mail": 1.0}
HOUR = 3600.0


def wait(
    name: str,
    project: str = "a",
    *,
    gpus: int = 1,
    priority: int = 5,
    at: float = 0,
    waited: float = 0,
) -> Waiting:
    queued_at = BEGIN + timedelta(seconds=at)
    return Waiting(name, project, "gpu", gpus, priority, queued_at, waited)


def shares(*given: Share) -> dict[str, Share]:
    return {share.project: share for share in given}


def names(jobs: Iterable[Waiting]) -> list[str]:
    return [job.job_id for job in jobs]


class TestOrder:
    def test_one_project_has_the_order_of_a_single_queue(self) -> None:
        chance = random.Random(1)
        jobs = [
            wait(f"job-{n}", priority=chance.randrange(10), at=chance.randrange(50))
            for n in range(200)
        ]
        usual = sorted(jobs, key=lambda job: (job.priority, job.queued_at, job.job_id))
        used = Share("a", virtual_seconds=7e5, running=(Running(4, 90.0),))
        assert fair_queue.in_order(jobs, shares(used)) == usual

    def test_the_project_that_has_had_the_least_for_its_weight_is_next(self) -> None:
        jobs = [wait("a1", "a", priority=0), wait("b1", "b", priority=9), wait("a2", "a", at=1)]
        had = Share("a", weight=2).charged(4, 100), Share("b").charged(1, 150)
        assert [share.virtual_seconds for share in had] == [200, 150]
        assert names(fair_queue.in_order(jobs, shares(*had))) == ["b1", "a1", "a2"]

    def test_gpus_that_become_free_at_once_are_not_all_for_one_project(self) -> None:
        """An attempt that has just begun counts as what its project's attempts usually take."""
        jobs = [wait("a2", "a"), wait("b1", "b", at=1)]
        assert names(fair_queue.in_order(jobs, shares(Share("a"), Share("b")))) == ["a2", "b1"]
        begun = replace(Share("a"), running=(Running(1, 0.0),))
        assert names(fair_queue.in_order(jobs, shares(begun, Share("b")))) == ["b1", "a2"]

    def test_over_the_quota_of_gpus_a_job_is_left_out(self) -> None:
        busy = Share("a", max_gpus=4, running=(Running(3, 10.0),))
        jobs = [wait("large", gpus=2, waited=60), wait("small", at=1)]
        # For the first ten minutes it holds the rest of the quota for itself …
        assert names(fair_queue.in_order(jobs, shares(busy))) == []
        # … and then lets smaller ones pass for twenty.
        later = [replace(jobs[0], waited_seconds=700), jobs[1]]
        assert names(fair_queue.in_order(later, shares(busy))) == ["small"]

    def test_a_large_job_holds_back_once_others_were_preferred_for_long(self) -> None:
        """However long it has waited: two thirds of that time it would let all others pass."""
        large, small = wait("large", "a", gpus=8, waited=700), wait("small", "b")
        free = lambda gpus: gpus if gpus < 8 else None  # noqa: E731
        level = shares(Share("a"), Share("b", virtual_seconds=4700))
        assert (
            fair_queue.first_fitting(fair_queue.in_order([large, small], level), free) is not None
        )
        behind = shares(Share("a"), Share("b", virtual_seconds=4900))
        assert fair_queue.first_fitting(fair_queue.in_order([large, small], behind), free) is None

    def test_a_job_that_needs_more_than_the_quota_does_not_hold_others_back(self) -> None:
        jobs = [wait("never", gpus=8), wait("small", at=1), wait("other", "b", at=2)]
        found = fair_queue.in_order(jobs, shares(Share("a", max_gpus=4), Share("b")))
        assert names(found) == ["small", "other"]


class TestCredit:
    def test_a_project_gets_nothing_for_the_time_without_jobs(self) -> None:
        idle, busy = Share("idle"), Share("busy", virtual_seconds=9e4)
        (now,) = fair_queue.lifted([idle, busy], {"busy"})
        assert (now.project, now.virtual_seconds) == ("idle", 9e4)

    def test_a_project_with_waiting_jobs_keeps_what_it_is_owed(self) -> None:
        assert fair_queue.lifted([Share("a"), Share("b", virtual_seconds=9e4)], {"a", "b"}) == []

    def test_but_a_job_that_no_worker_can_run_collects_no_endless_credit(self) -> None:
        stuck, busy = Share("stuck"), Share("busy", virtual_seconds=9e7)
        (now,) = fair_queue.lifted([stuck, busy], {"stuck", "busy"})
        assert now.virtual_seconds == 9e7 - LONGEST_CREDIT_SECONDS

    def test_no_job_is_moved_while_no_worker_runs(self) -> None:
        assert fair_queue.lifted([Share("a"), Share("b", virtual_seconds=5)], set()) == []

    def test_pools(self) -> None:
        assert (fair_queue.pool_of(0), fair_queue.pool_of(3)) == (Pool.CPU, Pool.GPU)


def cluster(seed: int, work: float, *, arrive_within: float) -> tuple[Cluster, list[Job]]:
    """Four projects with equal work, so that the heaviest one is done first."""
    chance = random.Random(seed)
    # The projects ask for different sizes: that must not help any of them.
    sizes = {"search": [1, 1, 2, 8], "ads": [1], "maps": [4, 8], "mail": [1, 2, 4]}
    jobs = [
        job
        for project, of_project in sizes.items()
        for job in make_jobs(project, work, chance, arrive_within=arrive_within, gpus=of_project)
    ]
    given = [Share(project, weight) for project, weight in WEIGHTS.items()]
    return Cluster([8, 8, 4], given, jobs, chance), jobs


@pytest.mark.heavy
class TestTenThousandJobs:
    """Three hosts; lengths from minutes to hours; one attempt in ten is interrupted, and its job
    waits again."""

    def test_each_backlogged_project_gets_its_share_and_none_starves(self) -> None:
        simulated, jobs = cluster(11, 6e6, arrive_within=100 * HOUR)
        assert len(jobs) >= 10_000
        shared: dict[str, float] = {}
        all_wait = True
        for _ in simulated.run():
            all_wait = all_wait and simulated.backlogged() == set(WEIGHTS)
            if all_wait:
                shared = simulated.used_so_far()
        total = sum(shared.values())
        # Until the heaviest project has nothing left to wait for.
        assert shared["search"] > 0.95 * 6e6
        for project, weight in WEIGHTS.items():
            fair = weight / sum(WEIGHTS.values())
            assert shared[project] / total == pytest.approx(fair, rel=0.02), project
            # The time that its largest attempt takes of its share of 20 GPUs, and that one of the
            # others takes to end.
            largest = max(job.gpus for job in jobs if job.project == project)
            bound = largest * LONGEST_ATTEMPT / (20 * fair) + LONGEST_ATTEMPT
            assert simulated.longest_pause[project] < bound, project
        assert all(job.seconds <= 1e-6 for job in jobs)

    def test_a_project_with_little_to_do_waits_for_little(self) -> None:
        """It is next whenever GPUs become free, however much the others have queued."""
        simulated, _ = cluster(14, 1e6, arrive_within=10 * HOUR)
        visits = [Job(f"visitor-{n}", "visitor", 1 + n % 4, 300.0, 9, n * HOUR) for n in range(40)]
        simulated.add(Share("visitor"), visits)
        for _ in simulated.run():
            pass
        assert max(job.waited for job in visits) < 1.5 * HOUR
