"""Searches whose trials pause at rungs and are promoted."""

import hashlib
from collections import Counter

import pytest

from service.contract.failures import Failure, FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.states import ENDED, JobState
from service.searches import commands
from service.searches.search_pass import OCCUPIES
from service.store.jobs.claims import Claim
from service.store.scope import EVERYTHING
from tests.searches.conftest import Bench
from tests.searches.simulated_worker import by_learning_rate, search_spec
from tests.support.store.job_rows import get, put

ASHA = {"name": "asha", "rungs": [10, 30]}
RATES = (
    0.00738, 0.000155, 0.00778, 0.000723, 0.000618, 7.32e-06, 0.00804, 1.06e-06, 1.03e-05, 5.48e-05,
    0.00131,
)  # fmt: skip
ENQUEUED = [{"training.learning_rate": rate} for rate in RATES]
"""After the template's."""
TEMPLATE = {
    "job": search_spec()["job"]
    | {"training": {"max_steps": 90, "eval_strategy": "steps", "eval_steps": 10}}
}


class TestAsha:
    def test_pauses_promotes_and_ends_the_losers(self, bench: Bench) -> None:
        bench.worker.steps = 90
        search_id = bench.submit(pruner=ASHA, enqueue=ENQUEUED, max_trials=12, **TEMPLATE)
        row = bench.run(search_id)
        trials = bench.trials(search_id)
        reports = bench.reports(search_id)
        assert row.state == "succeeded"
        assert row.counts == {"complete": 2, "pruned": 10}
        assert [trial.number for trial in trials if trial.state == "complete"] == [0, 10]
        assert Counter(resource for _, resource, _, _ in reports) == {10: 12, 30: 5}
        assert {decision for _, _, _, decision in reports} == {"continue", "pause"}
        # As computed by hand from the values at the rungs: two were paused first.
        resumed = [job.trial for job in bench.jobs() if _was_resumed(bench, job.id)]
        assert resumed == [2, 6]
        first = {number: value for number, at, value, _ in reports if at == 10}
        assert row.best == [max(first, key=lambda number: first[number] or 0)] == [10]

    def test_a_promoted_trial_continues_where_it_was(self, bench: Bench) -> None:
        bench.worker.steps = 90
        search_id = bench.submit(pruner=ASHA, enqueue=ENQUEUED, max_trials=12, **TEMPLATE)
        bench.run(search_id)
        trained = 0
        for job in bench.jobs():
            steps = bench.steps_of(job.id)
            assert steps == list(range(10, 10 * len(steps) + 1, 10))
            trained += 10 * len(steps)
        assert bench.worker.trained_steps == trained

    def test_pruned_jobs_say_why(self, bench: Bench) -> None:
        bench.worker.steps = 90
        search_id = bench.submit(pruner=ASHA, max_trials=6, **TEMPLATE)
        bench.run(search_id)
        pruned = [trial for trial in bench.trials(search_id) if trial.state == "pruned"]
        assert pruned != []
        jobs = {job.id: job for job in bench.jobs()}
        for trial in pruned:
            job = jobs[trial.job_id or ""]
            assert "at the rung of step" in (trial.reason or "")
            assert job.state == "cancelled"
            assert (job.failure or {})["code"] == "trial_pruned"
            assert trial.reason in (job.failure or {})["message"]

    def test_one_that_its_user_retries_is_none_of_the_searchs_any_more(self, bench: Bench) -> None:
        bench.worker.steps = 90
        search_id = bench.submit(pruner=ASHA, max_trials=9, **TEMPLATE)
        while "pruned" not in bench.row(search_id).counts:
            bench.turn()
        pruned = next(t for t in bench.trials(search_id) if t.state == "pruned")
        put(bench.database, pruned.job_id or "", state="paused", ended_at=None)
        row = bench.run(search_id)
        assert row.state == "succeeded"
        assert get(bench.database, pruned.job_id or "").state == "paused"

    def test_files_of_pruned_trials_go_once_mlflow_has_all(self, bench: Bench) -> None:
        bench.worker.steps = 90
        search_id = bench.submit(pruner=ASHA, max_trials=6, **TEMPLATE)
        bench.run(search_id)
        bench.runner.step()
        assert not any(trial.is_cleaned for trial in bench.trials(search_id))
        bench.tracked()
        bench.runner.step()
        for trial in bench.trials(search_id):
            job = next(job for job in bench.jobs() if job.id == trial.job_id)
            assert trial.is_cleaned == (trial.state == "pruned")
            assert (job.workspace_pruned_at is not None) == (trial.state == "pruned")

    @pytest.mark.parametrize("parallel", [pytest.param(1, marks=pytest.mark.heavy), 4])
    def test_a_runner_that_remembers_nothing_decides_the_same(
        self, bench: Bench, parallel: int
    ) -> None:
        bench.worker.steps, bench.worker.slots = 90, parallel
        given = {"pruner": ASHA, "max_trials": 12, "max_parallel": parallel, **TEMPLATE}
        whole = bench.submit(**given)
        bench.run(whole)
        broken = bench.submit(**given)
        bench.run(broken, forgetful=True)
        assert bench.reports(broken) == bench.reports(whole)
        assert [trial.state for trial in bench.trials(broken)] == [
            trial.state for trial in bench.trials(whole)
        ]
        assert bench.row(broken).best == bench.row(whole).best

    def test_a_place_is_free_once_its_job_has_stopped(self, bench: Bench) -> None:
        bench.worker.steps, bench.worker.slots = 90, 2
        search_id = bench.submit(pruner=ASHA, max_trials=6, max_parallel=2, **TEMPLATE)
        most = 0
        while JobState(bench.row(search_id).state) not in ENDED:
            bench.runner.step()
            most = max(most, sum(JobState(job.state) in OCCUPIES for job in bench.jobs()))
            bench.worker.tick()
        assert most == 2

    def test_paused_trials_do_not_use_up_the_queue(self, bench: Bench) -> None:
        bench.worker.steps = 90
        bench.limit_queue(1)
        search_id = bench.submit(pruner=ASHA, max_trials=9, **TEMPLATE)
        assert bench.run(search_id).state == "succeeded"

    def test_the_last_trial_may_let_another_one_continue(self, bench: Bench) -> None:
        """Its job still has the place when the search has nothing else to begin."""
        rates = [1e-4, 2e-4, 1.5e-4, 1e-2]  # the first two of four continue: trials 0 and 2
        bench.worker.steps = 90
        search_id = bench.submit(
            pruner={"name": "asha", "rungs": [10], "reduction_factor": 2},
            enqueue=[{"training.learning_rate": rate} for rate in rates],
            template_trial=False,
            max_trials=4,
            **TEMPLATE,
        )
        bench.run(search_id)
        states = [trial.state for trial in bench.trials(search_id)]
        assert states == ["complete", "pruned", "complete", "pruned"]

    def test_cancelling_ends_the_paused(self, bench: Bench) -> None:
        bench.worker.steps = 90
        search_id = bench.submit(pruner=ASHA, max_trials=12, **TEMPLATE)
        while "paused" not in bench.row(search_id).counts:
            bench.turn()
        commands.cancel(bench.database, EVERYTHING, search_id)
        assert bench.run(search_id).state == "cancelled"
        assert {JobState(job.state) for job in bench.jobs()} <= ENDED
        ended = [trial for trial in bench.trials(search_id) if trial.state == "cancelled"]
        assert {trial.reason for trial in ended} == {"the search was ended"}

    def test_when_all_that_are_promoted_fail_the_next_best_continues(self, bench: Bench) -> None:
        bench.worker.steps = 90

        def later(claim: Claim) -> Failure | None:
            is_near = 3e-5 < claim.spec.training.learning_rate < 3e-4
            if is_near and bench.worker.running[claim.job_id][1] >= 40:
                return Failure.from_code(FailureCode.NON_FINITE_LOSS, "The loss is NaN.")
            return None

        bench.worker.fails = later
        search_id = bench.submit(pruner=ASHA, enqueue=ENQUEUED[:8], max_trials=9, **TEMPLATE)
        row = bench.run(search_id)
        trials = bench.trials(search_id)
        assert row.state == "succeeded"
        assert row.counts["failed"] >= 1
        first = {
            number: value or 0 for number, at, value, _ in bench.reports(search_id) if at == 10
        }
        failed = {trial.number for trial in trials if trial.state == "failed"}
        left = {number: value for number, value in first.items() if number not in failed}
        assert row.best == [max(left, key=lambda number: left[number])]

    def test_overshooting_a_rung_reveals_nothing(self, bench: Bench) -> None:
        """A trial continues until its supervisor sees the pause: what it reports meanwhile counts
        when it is promoted, as if it had stopped in time."""
        given = {"pruner": ASHA, "max_trials": 12, **TEMPLATE}
        bench.worker.steps = 90
        whole = bench.submit(**given)
        bench.run(whole)
        bench.worker.hears_late = True
        late = bench.submit(**given)
        bench.run(late)
        assert bench.reports(late) == bench.reports(whole)
        assert bench.row(late).best == bench.row(whole).best
        assert [t.state for t in bench.trials(late)] == [t.state for t in bench.trials(whole)]

    @pytest.mark.parametrize(
        ("seed", "limit"),
        [
            (0, None),
            *(pytest.param(*more, marks=pytest.mark.heavy) for more in ((1, None), (0, 5))),
        ],
    )
    def test_a_reconciler_that_was_away_decides_the_same(
        self, bench: Bench, seed: int, limit: int | None
    ) -> None:
        """However many reports and ends one pass sees, and however far a trial went on."""
        bench.worker.steps, bench.worker.score = 90, _noisy
        given = {
            "pruner": {"name": "asha", "rungs": [10, 30], "reduction_factor": 2},
            "sampler": {"name": "random", "seed": seed},
            "max_trials": 14,
            "stop_after_trials_without_gain": limit,
            **TEMPLATE,
        }
        whole = bench.submit(**given)
        bench.run(whole)
        seldom = bench.submit(**given)
        turns = iter(range(300))
        while bench.row(seldom).state != "succeeded":
            bench.runner.step()
            for _ in range(1 + 7 * next(turns) % 13):
                bench.worker.tick()
        assert bench.reports(seldom) == bench.reports(whole)
        assert bench.row(seldom).without_gain == bench.row(whole).without_gain
        assert [(t.state, t.end_number) for t in bench.trials(seldom)] == [
            (t.state, t.end_number) for t in bench.trials(whole)
        ]


class TestHyperband:
    def test_brackets_begin_at_different_rungs(self, bench: Bench) -> None:
        bench.worker.steps = 90
        pruner = {"name": "hyperband", "min_resource": 10, "max_resource": 90}
        search_id = bench.submit(pruner=pruner, max_trials=16, **TEMPLATE)
        row = bench.run(search_id)
        assert row.state == "succeeded"
        first: dict[int, int] = {}
        for number, resource, _, _ in bench.reports(search_id):
            first.setdefault(number, resource)
        assert set(first.values()) == {10, 30}
        assert row.counts["complete"] < 16


class TestMedian:
    def test_ends_what_is_worse_than_the_median(self, bench: Bench) -> None:
        pruner = {"name": "median", "n_startup_trials": 3}
        search_id = bench.submit(pruner=pruner, max_trials=10)
        row = bench.run(search_id)
        pruned = [trial for trial in bench.trials(search_id) if trial.state == "pruned"]
        assert row.counts["complete"] + len(pruned) == 10
        assert pruned != []
        reports = bench.reports(search_id)
        assert {decision for _, _, _, decision in reports} == {"continue", "prune"}
        last = {number: (at, value) for number, at, value, _ in reports}
        for trial in pruned:
            step, value = last[trial.number]
            assert trial.reason == (
                f"eval_f1 {value:.4g} at step {step}: its best so far is worse than the median of "
                "the finished trials there"
            )

    def test_counts_in_epochs(self, bench: Bench) -> None:
        bench.worker.steps, bench.worker.eval_steps = 90, 30
        search_id = bench.submit_template(
            {"training": {"num_train_epochs": 3, "eval_strategy": "epoch"}},
            pruner={"name": "median", "unit": "epochs"},
            max_trials=1,
        )
        bench.run(search_id)
        assert [epoch for _, epoch, _, _ in bench.reports(search_id)] == [1, 2, 3]

    def test_metrics_may_lack_their_prefix(self, bench: Bench) -> None:
        bench.worker.metric = "f1"
        search_id = bench.submit(pruner={"name": "median"}, max_trials=1)
        bench.run(search_id)
        assert [step for _, step, _, _ in bench.reports(search_id)] == [10, 20, 30]

    def test_a_pruned_trial_frees_its_worker(self, bench: Bench) -> None:
        pruner = {"name": "median", "n_startup_trials": 3}
        search_id = bench.submit(pruner=pruner, max_trials=10)
        bench.run(search_id)
        jobs = {job.trial: job for job in bench.jobs()}
        for trial in bench.trials(search_id):
            if trial.state == "pruned":
                assert len(bench.steps_of(jobs[trial.number].id)) < 3


class TestPatience:
    def test_ends_what_does_not_improve(self, bench: Bench) -> None:
        bench.worker.steps = 90
        bench.worker.score = lambda _spec, step: min(step, 20) / 100 - step / 1e5
        pruner = {"name": "patience", "patience": 2}
        search_id = bench.submit(pruner=pruner, max_trials=3, **TEMPLATE)
        row = bench.run(search_id)
        assert row.counts.get("pruned") == 3
        assert row.state == "failed"
        assert (row.failure or {})["message"] == "None of the 3 trials has finished; 0 failed."
        reached = Counter(number for number, _, _, _ in bench.reports(search_id))
        assert set(reached.values()) == {5}
        at = "eval_f1 0.1995 at step 50"
        reasons = {trial.reason for trial in bench.trials(search_id)}
        assert reasons == {f"{at}: no gain in 2 evaluations"}


def _noisy(spec: JobSpec, step: int) -> float:
    """The order of trials changes from rung to rung, so that many are promoted."""
    drawn = hashlib.sha256(f"{spec.training.learning_rate!r} {step}".encode()).digest()[0]
    return by_learning_rate(spec, step) + drawn / 512


def _was_resumed(bench: Bench, job_id: str) -> bool:
    return any(event.type == "resume_requested" for event in bench.events(job_id))
